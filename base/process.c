/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/text.h"

void tarn_process_begin(void)
{
    signal(SIGXFSZ, SIG_IGN);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        /* Opened for the other direction: using it fails with EBADF, as if it were closed. */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return;
}

uint64_t tarn_process_number(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pid_t of;
    static uint64_t number;
    pthread_mutex_lock(&lock);
    if (of != getpid()) {
        of = getpid();
        number = tarn_random64();
    }
    uint64_t n = number;
    pthread_mutex_unlock(&lock);
    return n;
}
