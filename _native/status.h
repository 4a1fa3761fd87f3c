/* What every function that can fail returns. The Python side gives each one a sentence. */
#ifndef SHUFLR_STATUS_H
#define SHUFLR_STATUS_H

enum {
    SHUFLR_OK = 0,
    SHUFLR_NO_MEMORY = 1,
    SHUFLR_BAD_FRAME = 2,      /* zstd refuses the bytes, or they hold more than was declared */
    SHUFLR_WRONG_SIZE = 3,     /* decoded, but not to the declared length */
    SHUFLR_WRONG_CHECKSUM = 4, /* neither checksum agrees */
    SHUFLR_OVERSIZED = 5,      /* a record longer than the cap, and the policy is to fail */
    SHUFLR_BAD_INDEX = 6,      /* an index entry points outside of its data */
};

/* What to do with a record longer than max_line. */
enum { SHUFLR_SKIP = 0, SHUFLR_FAIL = 1, SHUFLR_PASS = 2 };

#endif
