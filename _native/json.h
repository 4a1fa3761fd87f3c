/* Is a record one JSON value? RFC 8259 syntax, nothing kept, nothing decoded. */
#ifndef SHUFLR_JSON_H
#define SHUFLR_JSON_H

#include <stddef.h>
#include <stdint.h>

enum {
    SHUFLR_JSON_OK = 0,
    SHUFLR_JSON_VALUE,   /* a value was expected */
    SHUFLR_JSON_STRING,  /* a raw control byte, a bad escape, or no closing quote */
    SHUFLR_JSON_NUMBER,
    SHUFLR_JSON_PUNCTUATION, /* a comma, colon, bracket or key is missing */
    SHUFLR_JSON_TRAILING,    /* something follows the value */
    SHUFLR_JSON_DEPTH,       /* nested more than 128 deep */
};

/* Returns one of the above; *at is the byte the fault is seen at. */
int shuflr_json_check(const uint8_t *record, size_t len, size_t *at);

#endif
