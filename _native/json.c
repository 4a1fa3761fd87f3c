/* A JSON syntax check over bytes (RFC 8259): a stack of brackets and one loop, so depth costs no C stack.
 * UTF-8 is not looked at and duplicate keys are fine: the question is only whether a parser could get through. */
#include "json.h"

#include <string.h>

#define DEPTH_MAX 128

typedef struct {
    const uint8_t *p, *end;
} cursor;

static void skip_space(cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static int is_digit(const cursor *c)
{
    return c->p < c->end && *c->p >= '0' && *c->p <= '9';
}

static int is_hex(uint8_t b)
{
    return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'f') || (b >= 'A' && b <= 'F');
}

static int string(cursor *c)
{
    for (c->p++; c->p < c->end; c->p++) {
        if (*c->p == '"') {
            c->p++;
            return SHUFLR_JSON_OK;
        }
        if (*c->p < 0x20)
            return SHUFLR_JSON_STRING;
        if (*c->p != '\\')
            continue;
        if (++c->p == c->end)
            break;
        if (*c->p == 'u') {
            for (int i = 0; i < 4; i++)
                if (++c->p == c->end || !is_hex(*c->p))
                    return SHUFLR_JSON_STRING;
        } else if (*c->p == 0 || strchr("\"\\/bfnrt", *c->p) == NULL) {
            return SHUFLR_JSON_STRING;
        }
    }
    return SHUFLR_JSON_STRING;
}

static int digits(cursor *c)
{
    if (!is_digit(c))
        return 0;
    while (is_digit(c))
        c->p++;
    return 1;
}

static int number(cursor *c)
{
    if (*c->p == '-')
        c->p++;
    if (c->p < c->end && *c->p == '0')
        c->p++;
    else if (!digits(c))
        return SHUFLR_JSON_NUMBER;
    if (c->p < c->end && *c->p == '.') {
        c->p++;
        if (!digits(c))
            return SHUFLR_JSON_NUMBER;
    }
    if (c->p < c->end && (*c->p == 'e' || *c->p == 'E')) {
        c->p++;
        if (c->p < c->end && (*c->p == '+' || *c->p == '-'))
            c->p++;
        if (!digits(c))
            return SHUFLR_JSON_NUMBER;
    }
    return SHUFLR_JSON_OK;
}

static int word(cursor *c, const char *text)
{
    size_t n = strlen(text);

    if ((size_t)(c->end - c->p) < n || memcmp(c->p, text, n) != 0)
        return SHUFLR_JSON_VALUE;
    c->p += n;
    return SHUFLR_JSON_OK;
}

static int scalar(cursor *c)
{
    switch (*c->p) {
    case '"': return string(c);
    case 't': return word(c, "true");
    case 'f': return word(c, "false");
    case 'n': return word(c, "null");
    default: return *c->p == '-' || is_digit(c) ? number(c) : SHUFLR_JSON_VALUE;
    }
}

/* A key and its colon. */
static int key(cursor *c)
{
    int fault;

    skip_space(c);
    if (c->p == c->end || *c->p != '"')
        return SHUFLR_JSON_PUNCTUATION;
    if ((fault = string(c)) != SHUFLR_JSON_OK)
        return fault;
    skip_space(c);
    if (c->p == c->end || *c->p != ':')
        return SHUFLR_JSON_PUNCTUATION;
    c->p++;
    return SHUFLR_JSON_OK;
}

static int check(cursor *c)
{
    uint8_t closing[DEPTH_MAX];
    size_t depth = 0;
    int fault;

    for (;;) {
        skip_space(c);
        if (c->p == c->end)
            return SHUFLR_JSON_VALUE;
        if (*c->p == '{' || *c->p == '[') {
            uint8_t close = *c->p == '{' ? '}' : ']';
            if (depth == DEPTH_MAX)
                return SHUFLR_JSON_DEPTH;
            c->p++;
            skip_space(c);
            closing[depth++] = close;
            if (c->p == c->end || *c->p != close) {
                if (close == '}' && (fault = key(c)) != SHUFLR_JSON_OK)
                    return fault;
                continue;
            }
        } else if ((fault = scalar(c)) != SHUFLR_JSON_OK) {
            return fault;
        }
        /* a value, or an opened bracket that closes at once, is behind us */
        for (skip_space(c); depth > 0 && c->p < c->end && *c->p == closing[depth - 1]; skip_space(c)) {
            depth--;
            c->p++;
        }
        if (depth == 0)
            return c->p == c->end ? SHUFLR_JSON_OK : SHUFLR_JSON_TRAILING;
        if (c->p == c->end || *c->p != ',')
            return SHUFLR_JSON_PUNCTUATION;
        c->p++;
        if (closing[depth - 1] == '}' && (fault = key(c)) != SHUFLR_JSON_OK)
            return fault;
    }
}

int shuflr_json_check(const uint8_t *record, size_t len, size_t *at)
{
    cursor c = {record, record + len};
    int fault = check(&c);

    *at = (size_t)(c.p - record);
    return fault;
}
