/* Turns for threads: so many run at once, the others wait in the order they came. A thread can wait for its socket and
 * then for its turn in one call, so that of a thousand threads only those whose turn it is want the interpreter. */
#ifndef SHUFLR_GATE_H
#define SHUFLR_GATE_H

typedef struct shuflr_gate shuflr_gate;

/* NULL without memory. Free it when nobody is inside or waiting. */
shuflr_gate *shuflr_gate_new(unsigned permits);
void shuflr_gate_free(shuflr_gate *gate);

void shuflr_gate_enter(shuflr_gate *gate);
void shuflr_gate_leave(shuflr_gate *gate);

/* Waits until fd has one of `events`, wake (-1: none) is readable, or timeout_ms (-1: none) is over; if fd has, enters.
 * Returns what fd has: 0 means that it did not enter. */
int shuflr_gate_poll(shuflr_gate *gate, int fd, int events, int wake, int timeout_ms);

#endif
