/* A leaving thread hands its permit to the one that waits longest, and no newcomer can overtake it. */
#include "gate.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct waiter {
    pthread_cond_t turn;
    struct waiter *next;
    int granted;
} waiter;

struct shuflr_gate {
    pthread_mutex_t lock;
    unsigned permits;
    waiter *first, **last;
};

shuflr_gate *shuflr_gate_new(unsigned permits)
{
    shuflr_gate *gate = malloc(sizeof *gate);

    if (gate == NULL)
        return NULL;
    if (pthread_mutex_init(&gate->lock, NULL) != 0) {
        free(gate);
        return NULL;
    }
    gate->permits = permits;
    gate->first = NULL;
    gate->last = &gate->first;
    return gate;
}

void shuflr_gate_free(shuflr_gate *gate)
{
    if (gate == NULL)
        return;
    pthread_mutex_destroy(&gate->lock);
    free(gate);
}

void shuflr_gate_enter(shuflr_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (gate->permits > 0) {
        gate->permits--;
    } else {
        waiter me = {PTHREAD_COND_INITIALIZER, NULL, 0};
        *gate->last = &me;
        gate->last = &me.next;
        while (!me.granted)
            pthread_cond_wait(&me.turn, &gate->lock);
        pthread_cond_destroy(&me.turn);
    }
    pthread_mutex_unlock(&gate->lock);
}

void shuflr_gate_leave(shuflr_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (gate->first == NULL) {
        gate->permits++;
    } else {
        waiter *next = gate->first;
        gate->first = next->next;
        if (gate->first == NULL)
            gate->last = &gate->first;
        next->granted = 1;
        pthread_cond_signal(&next->turn);
    }
    pthread_mutex_unlock(&gate->lock);
}

int shuflr_gate_poll(shuflr_gate *gate, int fd, int events, int wake, int timeout_ms)
{
    struct pollfd fds[2] = {{fd, (short)events, 0}, {wake, POLLIN, 0}};

    if (poll(fds, wake < 0 ? 1 : 2, timeout_ms) <= 0 || fds[0].revents == 0)
        return 0;
    shuflr_gate_enter(gate);
    return fds[0].revents;
}
