#include "tools/start/signals.h"

#include <pthread.h>
#include <unistd.h>

static struct ox_trainer_events events;
static pthread_t main_thread;
static sigset_t before; /* what the parent process held */

static void held(sigset_t *set) {
    static const int numbers[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    sigemptyset(set);
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        sigaddset(set, numbers[i]);
    }
}

/* Forwards a signal to the main thread, which owns the flags: the kernel may deliver it to any thread, even one of the
 * matrix library. Returns true when it was forwarded. */
static bool forwarded(int signal_number) {
    if (pthread_equal(pthread_self(), main_thread)) {
        return false;
    }
    pthread_kill(main_thread, signal_number);
    return true;
}

/* HUP ends nothing at once, because a terminal that closes may send several. */
static void on_stop(int signal_number) {
    if (forwarded(signal_number)) {
        return;
    }
    if (events.stop != 0 && signal_number != SIGHUP) {
        static const char line[] = "\nended at once by a second signal; what was committed or saved is intact\n";
        const ssize_t ignored = write(STDERR_FILENO, line, sizeof line - 1); /* stderr may be closed */
        (void)ignored;
        _exit(128 + signal_number);
    }
    if (events.stop == 0) {
        __atomic_store_n(&events.stop, signal_number, __ATOMIC_RELAXED); /* ox_is_raised */
    }
}

static void on_save(int signal_number) {
    if (!forwarded(signal_number)) {
        events.save = (sig_atomic_t)(events.save + 1);
    }
}

static void on_finish(int signal_number) {
    if (!forwarded(signal_number)) {
        events.finish = 1;
    }
}

static void install(int signal_number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

/* An assertion has said more already. */
static void on_abort(int signal_number) {
    static const char text[] =
        "\noffload: ended by SIGABRT: an assertion failed, which a line above names, or a library met what it cannot "
        "handle, such as memory that the kernel does not take back; this is a fault of the program or the machine, not "
        "of the options. What was committed or saved is intact: a run goes on with --resume-from-checkpoint latest\n";
    const ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written; /* there is nobody to tell */
    install(signal_number, SIG_DFL);
    raise(signal_number); /* ends the process when this handler returns */
}

void ox_signals_hold(void) {
    sigset_t set;
    held(&set);
    install(SIGABRT, on_abort);
    pthread_sigmask(SIG_BLOCK, &set, &before);
}

void ox_signals_release(void) {
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

const struct ox_trainer_events *ox_signals_take(void) {
    struct sigaction given;
    sigset_t set;
    main_thread = pthread_self();
    if (sigaction(SIGHUP, NULL, &given) == 0 && given.sa_handler != SIG_IGN) { /* nohup ignores it, and so do we */
        install(SIGHUP, on_stop);
    }
    install(SIGINT, on_stop);
    install(SIGTERM, on_stop);
    install(SIGUSR1, on_save);
    install(SIGUSR2, on_finish);
    install(SIGPIPE, SIG_IGN); /* a closed pipe then shows as a write error */
    held(&set);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return &events;
}
