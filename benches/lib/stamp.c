/* The COMMAND of the measurements: writes down when it began and when it ended, and does next to nothing else.
 *
 *     stamp FILE ID MICROSECONDS     sleeps that long
 *     stamp FILE ID FIFO             writes an empty line to its output, and goes on when nobody has FIFO open for writing;
 *                                    not all programs under test pass standard input on
 *
 * Appends one line to FILE: ID, the token that lockrun gave it or -, and both times in nanoseconds of CLOCK_MONOTONIC.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int argc, char **argv) {
    long long began = now();
    if (argc != 4) return 64;
    const char *token = getenv("LOCKRUN_TOKEN");
    int file = open(argv[1], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return 1;
    if (argv[3][0] == '/') {
        char byte;
        int fifo = open(argv[3], O_RDONLY | O_CLOEXEC);
        if (fifo < 0 || write(STDOUT_FILENO, "\n", 1) != 1) return 1;
        while (read(fifo, &byte, 1) > 0) {}
    } else {
        long span = atol(argv[3]);
        struct timespec left = {span / 1000000, span % 1000000 * 1000};
        if (span > 0) nanosleep(&left, NULL);
    }
    char line[256];
    int length = snprintf(line, sizeof line, "%s %s %lld %lld\n", argv[2], token ? token : "-", began, now());
    return write(file, line, length) == length ? 0 : 1;
}
