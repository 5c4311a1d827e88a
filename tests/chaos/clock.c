/* Moves the wall clock of one process by the seconds that stand in a file, as they change; built and loaded by
   tests/chaos/test_outages.py. The kernel has no such clock: a time namespace moves only the monotonic ones. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void open_shift(void)
{
    const char *file = getenv("PYTHONCHAOS_CLOCK");
    int descriptor = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0)
        _exit(99);
    void *found = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, descriptor, 0);
    if (found == MAP_FAILED)
        _exit(99);
    shift = found;
    close(descriptor);
}

int clock_gettime(clockid_t id, struct timespec *told)
{
    int status = syscall(SYS_clock_gettime, id, told);
    if (status == 0 && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        told->tv_sec += *shift;
    return status;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    told->tv_sec = now.tv_sec;
    told->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *told)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told)
        *told = now.tv_sec;
    return now.tv_sec;
}
