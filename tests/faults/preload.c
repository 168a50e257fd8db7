/* A preloaded library that causes faults of disks and clocks inside one process.
 *
 * It maps the file that FAULTS_CONTROL names. `preload.py` writes that file while the process runs; its
 * table of fields matches this struct. Times are nanoseconds. If all fields are zero, there is no fault.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t sequence;      /* Odd while the clock's fields change. */
    int64_t wall_shift;    /* Added to the wall clock. */
    int64_t steady_shift;  /* Added to the monotonic clocks. */
    int64_t rate;          /* Per mille of the true rate since `rate_since`; 0 is 1000. */
    int64_t rate_since;    /* A true monotonic time. */
    int64_t sync_error;    /* errno of fsync and fdatasync. */
    int64_t sync_delay;
    int64_t read_error;    /* errno of reads of log files. */
    int64_t write_room;    /* After so many bytes writes of log files fail with ENOSPC; -1: no bound. */
    int64_t stall;         /* Once: the main thread stands still. */
    int64_t hog;           /* Once: bytes of memory to allocate and touch. */
    int64_t syncs_hit, reads_hit, writes_hit, stalls_hit;
};

static struct control none = {.write_room = -1};
static struct control *control = &none;
static pid_t main_thread;

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))find(&found_##name, #name)
#define FOUND(name) static void *found_##name
static void *find(void **found, const char *name) {
    void *real = __atomic_load_n(found, __ATOMIC_RELAXED);
    if (real == NULL) {
        real = dlsym(RTLD_NEXT, name);
        __atomic_store_n(found, real, __ATOMIC_RELAXED);
    }
    return real;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_CONTROL");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) control = mapped;
    main_thread = getpid();
}

static void hit(int64_t *counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

static int64_t nanoseconds(const struct timespec *at) {
    return (int64_t)at->tv_sec * 1000000000 + at->tv_nsec;
}

static void set(struct timespec *at, int64_t value) {
    if (value < 0) value = 0;
    at->tv_sec = value / 1000000000;
    at->tv_nsec = value % 1000000000;
}

/* --- Clocks ------------------------------------------------------------------------------- */

FOUND(clock_gettime);

static int64_t true_steady(void) {
    REAL(clock_gettime);
    struct timespec at;
    real(CLOCK_MONOTONIC, &at);
    return nanoseconds(&at);
}

/* The difference between a clock and the kernel's. */
static int64_t shift_of(int is_wall) {
    int64_t sequence, shift, rate, since;
    do {
        sequence = __atomic_load_n(&control->sequence, __ATOMIC_ACQUIRE);
        shift = is_wall ? control->wall_shift : control->steady_shift;
        rate = control->rate;
        since = control->rate_since;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (sequence & 1 || sequence != __atomic_load_n(&control->sequence, __ATOMIC_RELAXED));
    if (rate != 0 && rate != 1000) shift += (true_steady() - since) / 1000 * (rate - 1000);
    return shift;
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static int is_steady(clockid_t clock) {
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW ||
           clock == CLOCK_BOOTTIME;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    REAL(clock_gettime);
    int failed = real(clock, at);
    if (!failed && (is_wall(clock) || is_steady(clock)))
        set(at, nanoseconds(at) + shift_of(is_wall(clock)));
    return failed;
}

FOUND(gettimeofday);
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    REAL(gettimeofday);
    int failed = real(at, zone);
    if (!failed && at != NULL) {
        int64_t now = (int64_t)at->tv_sec * 1000000 + at->tv_usec + shift_of(1) / 1000;
        at->tv_sec = now / 1000000;
        at->tv_usec = now % 1000000;
    }
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}

/* A deadline by the kernel's clock. */
static const struct timespec *kernels(const struct timespec *deadline, int wall, struct timespec *room) {
    if (deadline == NULL) return NULL;
    set(room, nanoseconds(deadline) - shift_of(wall));
    return room;
}

FOUND(clock_nanosleep);
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    REAL(clock_nanosleep);
    struct timespec room;
    if (flags & TIMER_ABSTIME) until = kernels(until, is_wall(clock), &room);
    return real(clock, flags, until, left);
}

FOUND(sem_timedwait);
int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    REAL(sem_timedwait);
    struct timespec room;
    return real(semaphore, kernels(deadline, 1, &room));
}

FOUND(sem_clockwait);
int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict deadline) {
    REAL(sem_clockwait);
    struct timespec room;
    return real(semaphore, clock, kernels(deadline, is_wall(clock), &room));
}

FOUND(pthread_cond_clockwait);
int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           clockid_t clock, const struct timespec *restrict deadline) {
    REAL(pthread_cond_clockwait);
    struct timespec room;
    return real(condition, mutex, clock, kernels(deadline, is_wall(clock), &room));
}

/* glibc keeps the condition's clock in bit 1 of this word. */
FOUND(pthread_cond_timedwait);
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    REAL(pthread_cond_timedwait);
    struct timespec room;
    int steady = (condition->__data.__wrefs & 2) != 0;
    return real(condition, mutex, kernels(deadline, !steady, &room));
}

FOUND(syscall);
long syscall(long number, ...) {
    REAL(syscall);
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    struct timespec room;
    if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET)
        a[3] = (long)kernels((const struct timespec *)a[3], (a[1] & FUTEX_CLOCK_REALTIME) != 0, &room);
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* --- The main thread's loop --------------------------------------------------------------- */

static void meet_the_loop(void) {
    if (control == &none || gettid() != main_thread) return;
    int64_t stall = __atomic_exchange_n(&control->stall, 0, __ATOMIC_ACQ_REL);
    if (stall > 0) {
        int64_t until = true_steady() + stall;
        hit(&control->stalls_hit);
        while (true_steady() < until) usleep(1000);
    }
    int64_t hog = __atomic_exchange_n(&control->hog, 0, __ATOMIC_ACQ_REL);
    if (hog > 0) {
        volatile char *taken = malloc(hog);
        for (int64_t at = 0; taken != NULL && at < hog; at += 4096) taken[at] = 1;
    }
}

FOUND(epoll_wait);
int epoll_wait(int fd, struct epoll_event *events, int count, int timeout) {
    REAL(epoll_wait);
    meet_the_loop();
    return real(fd, events, count, timeout);
}

FOUND(epoll_pwait);
int epoll_pwait(int fd, struct epoll_event *events, int count, int timeout, const sigset_t *mask) {
    REAL(epoll_pwait);
    meet_the_loop();
    return real(fd, events, count, timeout, mask);
}

/* --- Disks -------------------------------------------------------------------------------- */

static int is_log(int fd) {
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    return length > 4 && memcmp(path + length - 4, ".log", 4) == 0;
}

static int refuses_sync(void) {
    if (control->sync_delay > 0) {
        hit(&control->syncs_hit);
        int64_t until = true_steady() + control->sync_delay;
        while (true_steady() < until && control->sync_delay > 0) usleep(1000);
    }
    if (control->sync_error == 0) return 0;
    hit(&control->syncs_hit);
    errno = control->sync_error;
    return 1;
}

FOUND(fsync);
int fsync(int fd) {
    REAL(fsync);
    return refuses_sync() ? -1 : real(fd);
}

FOUND(fdatasync);
int fdatasync(int fd) {
    REAL(fdatasync);
    return refuses_sync() ? -1 : real(fd);
}

static int refuses_read(int fd) {
    if (control->read_error == 0 || !is_log(fd)) return 0;
    hit(&control->reads_hit);
    errno = control->read_error;
    return 1;
}

FOUND(pread64);
ssize_t pread64(int fd, void *to, size_t count, off64_t at) {
    REAL(pread64);
    return refuses_read(fd) ? -1 : real(fd, to, count, at);
}

FOUND(pread);
ssize_t pread(int fd, void *to, size_t count, off_t at) {
    REAL(pread);
    return refuses_read(fd) ? -1 : real(fd, to, count, at);
}

FOUND(preadv2);
ssize_t preadv2(int fd, const struct iovec *to, int count, off_t at, int flags) {
    REAL(preadv2);
    return refuses_read(fd) ? -1 : real(fd, to, count, at, flags);
}

FOUND(preadv64v2);
ssize_t preadv64v2(int fd, const struct iovec *to, int count, off64_t at, int flags) {
    REAL(preadv64v2);
    return refuses_read(fd) ? -1 : real(fd, to, count, at, flags);
}

FOUND(preadv64);
ssize_t preadv64(int fd, const struct iovec *to, int count, off64_t at) {
    REAL(preadv64);
    return refuses_read(fd) ? -1 : real(fd, to, count, at);
}

FOUND(writev);
ssize_t writev(int fd, const struct iovec *from, int count) {
    REAL(writev);
    int64_t room = control->write_room;
    if (room < 0 || !is_log(fd)) return real(fd, from, count);
    hit(&control->writes_hit);
    if (room == 0 || count == 0) {
        errno = ENOSPC;
        return -1;
    }
    struct iovec first = from[0];
    if ((int64_t)first.iov_len > room) first.iov_len = room;
    ssize_t written = real(fd, &first, 1);
    if (written > 0) __atomic_sub_fetch(&control->write_room, written, __ATOMIC_RELAXED);
    return written;
}
