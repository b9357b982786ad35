/* A table of faults in user input: every row makes one bad input, runs the program, and checks what it reports and
 * does. The exit status is 2 for faults that the user can fix and 1 for damage; stderr has one line of error that names
 * the thing, the place and the remedy, and no warnings but those of the row; no file appears, changes or disappears, in
 * the folder where the program runs or beside it.
 *
 *     test_bad_inputs --list    prints every row, the source of the list in docs/bad-inputs.md */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- rows ------------------------------------------------------------------------------------------- */

enum act_kind {
    ACT_NONE,
    WRITE,   /* `path` holds `text`, of `number` bytes (its own) if that is not 0                          */
    TENSORS, /* a safetensors file: the header `text` and `number` bytes of data                           */
    TOKENS,  /* an llm.c file: the integers of `text` as header and `number` bytes that equal the fourth   */
    LLMQ,    /* an llmq file: the integers of `text` behind the magic, and `number` bytes of 0             */
    NESTED,  /* `number` brackets around nothing                                                           */
    EDIT,    /* in `path` the first "a" becomes "b", for `text` "a=>b"                                     */
    POKE,    /* four bytes of `text` at `number` bytes before the end                                      */
    SIZE,    /* truncates `path`, or fills it up with zeros, to `number` bytes                             */
    REMOVE,
    FOLDER,
    LINK, /* `path` is a symbolic link to `text`                                                         */
    FIFO,
    SOCKET,
    MODE, /* permissions `number`                                                                        */
    MOVE, /* `path` gets the name `text`                                                                 */
};

struct act {
    enum act_kind kind;
    const char *path, *text;
    long number;
};

struct row {
    const char *name; /* what is wrong; without `acts`, what is wrong with the words alone */
    struct act acts[4];
    const char *words; /* further words of the command */
    int exit_status;
    const char *says[4]; /* texts that the line of error must all have */
    const char *warns;   /* text of the only warning; NULL: there is none */
    bool late;           /* the fault shows only after lines about the data or the plan, which stderr has too */
    bool not_root;       /* skipped for root, who may do what this row is refused */
    bool leaves_run;     /* the fault shows after the run has begun, so that `out` stays */
    unsigned processes;  /* so many under mpirun; 0: the program itself */
    const char *last_words; /* of the last process; NULL: `words` */
    const char *variables;  /* "NAME=VALUE NAME=VALUE" in the environment */
    bool needs_mpi;         /* skipped where there is none, as are rows of processes */
};

/* The program runs in a folder of its own with
 *     model/  config.json and model.safetensors, 256 tokens     tok/   tokenizer.json
 *     ckpt/   a checkpoint of it, where the words name it        text.txt
 * and files beside the folder that nothing may touch. */
#define RUN                                                                                     \
    "train --output out --max-steps 1 --max-seq-length 16 --host-mem 64MiB --compute-threads 1 " \
    "--optimizer-threads 1 "
#define TRAIN   RUN "--model model --data text.txt "
#define DATA    RUN "--model model --tokenizer tok --data "
#define ROWS                                                    \
    "{\"text\": \"ten decent cabbed bent canted deed eaten\"}\n" \
    "{\"text\": \"a beaten cadet ended a debate\"}\n"
#define LFS                                              \
    "version https://git-lfs.github.com/spec/v1\n"        \
    "oid sha256:0000000000000000000000000000000000000000" \
    "000000000000000000000000\nsize 1044992\n"
#define CHATS                                                   \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, " \
    "{\"role\": \"assistant\", \"content\": \"b\"}]}\n"
#define NAME_50 "a-name-of-fifty-bytes-a-name-of-fifty-bytes-a-name"

static const struct row rows[] = {
#include "tests/sys/command/bad_inputs_files.inc"
#include "tests/sys/command/bad_inputs_words.inc"
#include "tests/sys/command/bad_inputs_data.inc"
#include "tests/sys/command/bad_inputs_processes.inc"
};

enum { ROW_COUNT = sizeof rows / sizeof *rows, ACT_COUNT = sizeof rows->acts / sizeof *rows->acts };

static struct sys_args args, launched;
static struct sys_process process;
static const char *base, *spare, *place, *here;

/* ---- making inputs ---------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void give_up(const struct act *act) {
    printf("%s: cannot be made: %s\n", act->path, strerror(errno));
    exit(1);
}

static void write_parts(const struct act *act, const void *head, size_t head_bytes, int fill) {
    const int fd = open(act->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    char *const rest = malloc((size_t)act->number + 1);
    if (fd < 0 || rest == NULL || write(fd, head, head_bytes) != (ssize_t)head_bytes) {
        give_up(act);
    }
    memset(rest, fill, (size_t)act->number);
    if (write(fd, rest, (size_t)act->number) != act->number || close(fd) != 0) {
        give_up(act);
    }
    free(rest);
}

static void write_text(const struct act *act) {
    const size_t bytes = act->number > 0 ? (size_t)act->number : strlen(act->text);
    write_parts(&(struct act){.path = act->path}, act->text, bytes, 0);
}

static void write_tensors(const struct act *act) {
    char head[4096];
    const uint64_t bytes = strlen(act->text);
    if (sizeof bytes + bytes > sizeof head) {
        give_up(act);
    }
    memcpy(head, &bytes, sizeof bytes);
    memcpy(head + sizeof bytes, act->text, bytes);
    write_parts(act, head, sizeof bytes + bytes, 0);
}

static void write_tokens(const struct act *act) {
    int32_t head[256] = {0};
    int count = act->kind == LLMQ ? 2 : 0;
    const int fourth = count + 3;
    memcpy(head, "BIN.TOK\n", count > 0 ? 8 : 0);
    for (const char *at = act->text; *at != '\0';) {
        char *end = NULL;
        head[count++] = (int32_t)strtol(at, &end, 10);
        at = end;
    }
    write_parts(act, head, sizeof head, act->kind == LLMQ ? 0 : head[fourth]);
}

static void write_nested(const struct act *act) {
    char *const text = malloc(2 * (size_t)act->number);
    if (text == NULL) {
        give_up(act);
    }
    memset(text, '[', (size_t)act->number);
    memset(text + act->number, ']', (size_t)act->number);
    write_parts(&(struct act){.path = act->path}, text, 2 * (size_t)act->number, 0);
    free(text);
}

static void edit(const struct act *act) {
    const char *const arrow = strstr(act->text, "=>");
    char *data = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(act->path, (size_t)1 << 30, &data, &bytes));
    const size_t old_bytes = (size_t)(arrow - act->text), new_bytes = strlen(arrow + 2);
    char *const found = memmem(data, bytes, act->text, old_bytes);
    if (found == NULL) {
        errno = ENOMSG; /* the row is wrong: the text that it changes does not occur */
        give_up(act);
    }
    const size_t before = (size_t)(found - data), after = bytes - before - old_bytes;
    char *const changed = malloc(before + new_bytes + after + 1);
    if (changed == NULL) {
        give_up(act);
    }
    memcpy(changed, data, before);
    memcpy(changed + before, arrow + 2, new_bytes);
    memcpy(changed + before + new_bytes, found + old_bytes, after);
    write_parts(&(struct act){.path = act->path}, changed, before + new_bytes + after, 0);
    free(changed);
    free(data);
}

static void poke(const struct act *act) {
    struct stat info;
    const int fd = open(act->path, O_WRONLY);
    if (fd < 0 || fstat(fd, &info) != 0 || pwrite(fd, act->text, 4, info.st_size - act->number) != 4) {
        give_up(act);
    }
    close(fd);
}

static int make_socket(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    const int result = fd < 0 ? -1 : bind(fd, (const struct sockaddr *)&address, sizeof address);
    close(fd);
    return result;
}

static void clear(const char *path) {
    if (ox_path_is_folder(path) && unlink(path) != 0) {
        REQUIRE_OK(ox_folder_remove(path));
    } else if (ox_path_exists(path)) {
        unlink(path);
    }
}

static void act_on(const struct act *act) {
    int result = 0;
    switch (act->kind) {
    case ACT_NONE:
        break;
    case WRITE:
        write_text(act);
        break;
    case TENSORS:
        write_tensors(act);
        break;
    case TOKENS:
    case LLMQ:
        write_tokens(act);
        break;
    case NESTED:
        write_nested(act);
        break;
    case EDIT:
        edit(act);
        break;
    case POKE:
        poke(act);
        break;
    case SIZE:
        result = truncate(act->path, act->number);
        break;
    case MODE:
        result = chmod(act->path, (mode_t)act->number);
        break;
    case MOVE:
        result = rename(act->path, act->text);
        break;
    case REMOVE:
    case FOLDER:
    case LINK:
    case FIFO:
    case SOCKET:
        clear(act->path);
        result = act->kind == FOLDER   ? mkdir(act->path, 0700)
                 : act->kind == LINK   ? symlink(act->text, act->path)
                 : act->kind == FIFO   ? mkfifo(act->path, 0600)
                 : act->kind == SOCKET ? make_socket(act->path)
                                       : 0;
        break;
    }
    if (result != 0) {
        give_up(act);
    }
}

/* ---- what there is ---------------------------------------------------------------------------------- */

/* Lists everything below the folder except `skipped`, one line each. Times of folders are left out, because a folder
 * may be made and removed again. */
static void list(FILE *out, const char *path, const char *skipped) {
    struct dirent **names = NULL;
    const int count = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        const char *child;
        struct stat info;
        if (strcmp(names[i]->d_name, ".") != 0 && strcmp(names[i]->d_name, "..") != 0) {
            child = test_pathf("%s/%s", path, names[i]->d_name);
            if (skipped != NULL && strcmp(child, skipped) == 0) {
                free(names[i]);
                continue;
            }
            if (lstat(child, &info) != 0) {
                printf("%s: cannot be examined\n", child);
                exit(1);
            }
            const bool folder = S_ISDIR(info.st_mode);
            fprintf(out, "%s inode %lu mode %o size %ld time %ld.%09ld\n", child, (unsigned long)info.st_ino,
                    info.st_mode, folder ? 0L : (long)info.st_size, folder ? 0L : (long)info.st_mtim.tv_sec,
                    folder ? 0L : (long)info.st_mtim.tv_nsec);
            if (folder) {
                list(out, child, skipped);
            }
        }
        free(names[i]);
    }
    free(names);
}

static char *list_all(const struct row *row) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *const out = open_memstream(&text, &bytes);
    if (out == NULL) {
        exit(1);
    }
    const char *const run = test_path("place/here/out");
    list(out, place, row->leaves_run || row->exit_status == 0 ? run : NULL);
    fclose(out);
    return text;
}

/* ---- checking --------------------------------------------------------------------------------------- */

/* Checks that stderr has one line of error, a warning if the row has one, and nothing else. Returns NULL, or what is
 * wrong; copies the last error to `error`. */
static const char *judge_lines(const struct row *row, char *error, size_t error_bytes) {
    unsigned errors = 0, warnings = 0, others = 0;
    bool warned = row->warns == NULL, last_is_error = false;
    for (const char *line = process.outcome.err; *line != '\0';) {
        const size_t length = strcspn(line, "\n");
        last_is_error = strncmp(line, "offload: ", 9) == 0;
        if (last_is_error) {
            snprintf(error, error_bytes, "%.*s", (int)length, line);
            errors++;
        } else if (strncmp(line, "warning: ", 9) == 0) {
            warned = warned || memmem(line, length, row->warns, strlen(row->warns)) != NULL;
            warnings++;
        } else {
            others++;
        }
        line += length + (line[length] == '\n');
    }
    if (row->exit_status == 0) {
        return errors > 0 ? "an error was printed" : !warned ? "the warning is missing" : NULL;
    }
    if (errors != 1 || !last_is_error) {
        return "stderr does not end in one line of error";
    }
    if (!warned || warnings != (row->warns != NULL)) {
        return row->warns != NULL ? "there is not one warning, the expected one" : "there are warnings";
    }
    return others > 0 && !row->late ? "stderr has other lines" : NULL;
}

static const char *judge(const struct row *row, const char *before, char *error, size_t error_bytes) {
    const char *wrong = process.outcome.exit_status != row->exit_status ? "the exit status is another" : NULL;
    error[0] = '\0';
    const char *const lines = judge_lines(row, error, error_bytes);
    wrong = wrong != NULL ? wrong : lines;
    for (unsigned i = 0; wrong == NULL && i < 4 && row->says[i] != NULL; i++) {
        wrong = strstr(error, row->says[i]) == NULL ? row->says[i] : NULL;
    }
    for (const char *at = process.outcome.err; wrong == NULL && *at != '\0'; at++) {
        wrong = (unsigned char)*at < 0x20 && *at != '\n' ? "stderr has a control character" : NULL;
    }
    char *const after = list_all(row);
    if (wrong == NULL && !sys_same_text("the files before and after", before, after)) {
        wrong = "files were left, changed or removed";
    }
    free(after);
    return wrong;
}

/* Sets the variables of a row, or removes them. */
static void set_variables(const struct row *row, bool set) {
    char text[256];
    snprintf(text, sizeof text, "%s", row->variables != NULL ? row->variables : "");
    for (char *rest = NULL, *name = strtok_r(text, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest)) {
        char *const value = name + strcspn(name, "=");
        *value = '\0';
        CHECK((set ? setenv(name, value + 1, 1) : unsetenv(name)) == 0);
    }
}

static void add_words(const char *words) {
    const size_t command = strcspn(words, " ");
    char name[16];
    snprintf(name, sizeof name, "%.*s", (int)command, words);
    sys_args_begin(&args, name);
    sys_args_add(&args, words + command);
}

static void run_row(const struct row *row) {
    set_variables(row, true);
    add_words(row->words);
    if (row->processes > 0) {
        sys_mpi_begin(&launched, row->processes - (row->last_words != NULL), &args, SYS_MPI_END_OTHERS);
    }
    if (row->last_words != NULL) {
        add_words(row->last_words);
        sys_mpi_also(&launched, 1, &args);
    }
    sys_run(row->processes > 0 ? &launched : &args, &process);
    set_variables(row, false);
}

static void check_row(const struct row *row, bool listed) {
    char error[2048];
    if (ox_path_is_folder(here)) {
        files_remove_folder(here);
    }
    files_copy_folder(base, here);
    if (strstr(row->words, "ckpt") != NULL) {
        files_copy_folder(spare, "place/here/ckpt");
    }
    if (chdir(here) != 0) {
        printf("%s: cannot enter: %s\n", here, strerror(errno));
        exit(1);
    }
    for (unsigned i = 0; i < ACT_COUNT; i++) {
        act_on(&row->acts[i]);
    }
    char *const before = list_all(row);
    run_row(row);
    const char *const wrong = judge(row, before, error, sizeof error);
    free(before);
    if (wrong != NULL) {
        printf("%s: %s\n  offload %s\n%s... ended with %d\n", row->name, wrong, row->words, process.outcome.err,
               process.outcome.exit_status);
        test_failure_count++;
    } else if (listed) {
        printf("| %s | %d | %s |\n", row->name, row->exit_status,
               row->exit_status != 0 ? error + 9 : row->warns != NULL ? row->warns : "");
    }
}

/* ---- the good inputs -------------------------------------------------------------------------------- */

/* A tokenizer with letters that normalization splits and joins, and the tokens of two chat templates. */
static const char tokenizer_json[] =
    "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [\n"
    "{\"id\": 10, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false,"
    " \"normalized\": false, \"special\": true},\n"
    "{\"id\": 11, \"content\": \"</s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false,"
    " \"normalized\": false, \"special\": true},\n"
    "{\"id\": 12, \"content\": \"<|im_start|>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false,"
    " \"normalized\": false, \"special\": true},\n"
    "{\"id\": 13, \"content\": \"<|im_end|>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false,"
    " \"normalized\": false, \"special\": true}],\n"
    "\"normalizer\": null,\n"
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true},\n"
    "\"post_processor\": null,\n"
    "\"decoder\": {\"type\": \"ByteLevel\"},\n"
    "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"fuse_unk\": false,\n"
    "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3, \"e\": 4, \"n\": 5, \"t\": 6, \"ab\": 7, \"en\": 8,"
    " \"\\u0120\": 9}, \"merges\": [\"a b\", \"e n\"]}}\n";

static const char tokenizer_config_json[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}\n";

static void make_base(void) {
    const char *const config = sys_write_model("llama");
    const char *const text = sys_write_text(4000);
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", config);
    sys_args_word(&args, "--data=%s", text);
    const char *const first = test_path("first");
    sys_args_word(&args, "--output=%s", first);
    sys_args_add(&args, "--max-steps 1 --max-seq-length 16 --host-mem 64MiB --compute-threads 1 --optimizer-threads 1");
    sys_run_well(&args, &process);
    base = files_make_folder("base");
    files_make_folder("base/model");
    files_make_folder("base/tok");
    spare = test_path("first/checkpoint-1");
    REQUIRE_OK(ox_file_copy(test_path("first/checkpoint-1/model.safetensors"),
                            test_path("base/model/model.safetensors")));
    REQUIRE_OK(ox_file_copy(config, test_path("base/model/config.json")));
    REQUIRE_OK(ox_file_copy(text, test_path("base/text.txt")));
    files_write_text("base/tok/tokenizer.json", tokenizer_json);
    files_write("base/tok/tokenizer_config.json", tokenizer_config_json,
                               strlen(tokenizer_config_json));
    place = files_make_folder("place");
    files_write("place/outside.txt", "Nobody writes here.\n", 20);
    REQUIRE_OK(ox_file_copy(test_path("base/model/model.safetensors"),
                            test_path("place/outside.safetensors")));
    here = test_path("place/here");
}

/* Rows run in other folders, so the path of the program must be absolute. */
static void fix_program(void) {
    const char *const named = getenv("OX_BIN");
    char *const program = realpath(named != NULL ? named : "build/offload", NULL);
    if (program == NULL || setenv("OX_BIN", program, 1) != 0) {
        printf("the program cannot be found; build it or set OX_BIN\n");
        exit(1);
    }
    free(program);
}

int main(int argc, char **argv) {
    const bool listed = argc == 2 && strcmp(argv[1], "--list") == 0;
    umask(0022);
    fix_program();
    make_base();
    unsigned bad = 0, good = 0;
    const char *const no_processes = sys_mpi_missing();
    sys_mpi_allow_leaks();
    for (unsigned i = 0; i < ROW_COUNT; i++) {
        const bool needs_mpi = rows[i].processes > 0 || rows[i].needs_mpi;
        const char *const why = rows[i].not_root && geteuid() == 0 ? "this is root" : needs_mpi ? no_processes : NULL;
        if (why != NULL) {
            printf("%s: not tried: %s\n", rows[i].name, why);
            continue;
        }
        check_row(&rows[i], listed);
        *(rows[i].exit_status != 0 ? &bad : &good) += 1;
    }
    printf("%u bad inputs, %u good ones\n", bad, good);
    CHECK(bad >= 70);
    CHECK(chdir("/") == 0);
    return test_end();
}
