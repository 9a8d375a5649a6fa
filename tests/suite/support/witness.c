// witness FILE TAG [CHILD...]
//
// Ignores TERM, HUP, INT and QUIT, prints "ready", and appends the time of the boot clock to FILE every few
// milliseconds. For each CHILD a child does the same: for "setsid" in a session of its own.

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void stamp(int file, const char *tag) {
    struct timespec now;
    char line[256];
    clock_gettime(CLOCK_BOOTTIME, &now);
    int length = snprintf(line, sizeof line, "%s %d %lld\n", tag, (int)getpid(),
                          (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    if (length >= (int)sizeof line || write(file, line, length) != length)
        _exit(70);
}

int main(int count, char **words) {
    const int ignored[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT};
    for (int at = 0; at < 4; at++)
        signal(ignored[at], SIG_IGN);
    int file = count < 3 ? -1 : open(words[1], O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (file < 0)
        return 66;
    int is_leader = 1;
    for (int at = 3; at < count && is_leader; at++) {
        if (fork() == 0) {
            is_leader = 0;
            if (strcmp(words[at], "setsid") == 0)
                setsid();
        }
    }
    stamp(file, words[2]);
    if (is_leader) {
        puts("ready");
        fflush(stdout);
    }
    for (;;) {
        const struct timespec pause = {0, 3000000};
        nanosleep(&pause, NULL);
        stamp(file, words[2]);
    }
}
