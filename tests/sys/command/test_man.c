/* Manual pages and completions against the table of options: every option of a command is in its page and is offered,
 * nothing else is, and roff and the shells find no fault. Commands that pages show have flags that exist. */
#include "base/file.h"
#include "engine/config/config.h"
#include "tests/kit/files.h"
#include "tests/kit/run/advice.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <ctype.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMMANDS_MAX = 32, NAME_BYTES = 96, TEXT_BYTES = 1 << 18 };

static struct sys_process process;
static const char *const output = process.outcome.out;
static char names[COMMANDS_MAX][NAME_BYTES];
static int name_count;
static char page[TEXT_BYTES];

/* ---- what is run ------------------------------------------------------------------------------------ */

static void help(const char *words) {
    struct sys_args args;
    sys_args_begin(&args, "help");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

/* Expects status 2, and these words on stderr. */
static void refused(const char *command, const char *words, const char *expected) {
    struct sys_args args;
    sys_args_begin(&args, command);
    sys_args_add(&args, words);
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || strstr(process.outcome.err, expected) == NULL) {
        printf("offload %s %s: expected status 2 and '%s', got %d: %s\n", command, words, expected,
               process.outcome.exit_status, process.outcome.err);
        test_failure_count++;
    }
}

/* Runs another program with both streams into `text`; returns its exit status, 127 if it is not installed. */
static int run_tool(const char *const *argv, char *text) {
    const char *const path = test_path("tool.out");
    const pid_t child = fork();
    if (child == 0) {
        const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0 && dup2(fd, STDERR_FILENO) >= 0) {
            execvp(argv[0], (char *const *)argv);
        }
        _exit(127);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    FILE *const file = fopen(path, "r");
    size_t bytes = 0;
    if (file != NULL) {
        bytes = fread(text, 1, TEXT_BYTES - 1, file);
        fclose(file);
    }
    text[bytes] = '\0';
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Copies a text as a reader sees it, without escapes of hyphens and font changes. */
static void unescape(const char *roff, char *text) {
    while (*roff != '\0') {
        if (strncmp(roff, "\\f", 2) == 0) {
            roff += 3;
        } else if (strncmp(roff, "\\&", 2) == 0) {
            roff += 2;
        } else {
            roff += *roff == '\\' && roff[1] == '-';
            *text++ = *roff++;
        }
    }
    *text = '\0';
}

/* ---- tables ----------------------------------------------------------------------------------------- */

static unsigned mask_of(const char *command) {
    for (unsigned bit = 1; bit != 0; bit <<= 1) {
        if (strcmp(ox_command_name(bit), command) == 0) {
            return bit;
        }
    }
    return 0;
}

/* Returns whether the command takes this flag, given without its dashes. */
static bool takes(unsigned mask, const char *flag) {
    const struct ox_option *option = ox_option_find_in(flag, mask);
    if (option == NULL && strncmp(flag, "no-", 3) == 0) {
        option = ox_option_find_in(flag + 3, mask);
        option = option != NULL && option->type == OX_OPT_BOOL ? option : NULL;
    }
    return strcmp(flag, "help") == 0 || (strcmp(flag, "config") == 0 && mask != 0) ||
           option != NULL;
}

/* The next flag of a text, without dashes: "--" at the beginning of a word, then a letter. */
static const char *next_flag(const char *at, const char *end, char *flag) {
    for (; at < end && *at != '\0'; at++) {
        if (strncmp(at, "--", 2) == 0 && islower((unsigned char)at[2]) && strchr(" (\n|", at[-1]) != NULL) {
            const size_t bytes = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
            snprintf(flag, NAME_BYTES, "%.*s", (int)bytes, at + 2);
            return at + 2 + bytes;
        }
    }
    return NULL;
}

/* ---- pages ------------------------------------------------------------------------------------------ */

static void read_names(void) {
    help("--as names");
    for (const char *at = output; *at != '\0' && name_count < COMMANDS_MAX; at += strcspn(at, "\n") + 1) {
        snprintf(names[name_count++], NAME_BYTES, "%.*s", (int)strcspn(at, "\n"), at);
    }
    CHECK(name_count >= 11 && strcmp(names[0], "train") == 0);
}

/* The text between this heading and the next one. */
static const char *section(const char *heading, const char **end) {
    char line[NAME_BYTES];
    snprintf(line, sizeof line, "\n.SH %s\n", heading);
    const char *const found = strstr(page, line);
    const char *const begin = found != NULL ? found + strlen(line) - 1 : page + strlen(page);
    const char *const next = strstr(begin, "\n.SH ");
    *end = next != NULL ? next : page + strlen(page);
    return begin;
}

static void check_section(const char *command, const char *heading, long bytes_min) {
    const char *end = NULL;
    const char *const begin = section(heading, &end);
    if (end - begin < bytes_min) {
        printf("the page of offload %s has no %s worth reading; write it in tools/help/man_text.c\n", command, heading);
        test_failure_count++;
    }
}

static void check_options(const char *command, unsigned mask) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    const char *end = NULL, *begin = section("OPTIONS", &end);
    char line[2 * NAME_BYTES], flag[NAME_BYTES];
    for (uint32_t i = 0; i < count; i++) {
        if ((options[i].commands & mask) != 0) {
            snprintf(line, sizeof line, "\n--%s%s", options[i].name, options[i].type == OX_OPT_BOOL ? "," : " ");
            const char *const found = strstr(begin, line);
            if (found == NULL || found >= end) {
                printf("the page of offload %s lacks --%s\n", command, options[i].name);
                test_failure_count++;
            }
        }
    }
    for (const char *at = begin; (at = next_flag(at, end, flag)) != NULL;) {
        if (at[-(long)strlen(flag) - 3] == '\n' && !takes(mask, flag)) {
            printf("the page of offload %s tells of --%s, which it does not take\n", command, flag);
            test_failure_count++;
        }
    }
}

/* Prose may mention another command's flags, but no flag that no command takes; examples are exact. */
static void check_prose(const char *command) {
    const char *end = NULL, *at = page;
    char flag[NAME_BYTES], called[NAME_BYTES];
    while ((at = next_flag(at, page + strlen(page), flag)) != NULL) {
        if (!takes(~0u, flag) && strcmp(flag, "version") != 0) {
            printf("the page of offload %s tells of --%s, which does not exist\n", command, flag);
            test_failure_count++;
        }
    }
    at = section("EXAMPLES", &end);
    for (; at < end; at += strcspn(at, "\n") + 1) {
        const char *const call = strstr(at, "offload "), *const line_end = at + strcspn(at, "\n");
        if (call == NULL || call > line_end || sscanf(call, "offload %90[a-z]", called) != 1) {
            continue;
        }
        for (const char *word = call; (word = next_flag(word, line_end, flag)) != NULL;) {
            if (!takes(mask_of(called), flag)) {
                printf("an example of offload %s gives --%s to offload %s\n", command, flag, called);
                test_failure_count++;
            }
        }
    }
}

/* What the help of a command and its page name is the command's own, or said to be another's. */
static void check_names(const char *command) {
    static char own_words[3][NAME_BYTES] = {"offload", "", "--help"};
    char option[ADVICE_BYTES], line[2 * NAME_BYTES], *const words[] = {own_words[0], own_words[1], own_words[2], NULL};
    const char *end = NULL, *const begin = section("DESCRIPTION", &end);
    snprintf(own_words[1], NAME_BYTES, "%s", command);
    if (advice_find_foreign(begin, words, option)) {
        printf("the page of offload %s names %s, which is not its own\n", command, option);
        test_failure_count++;
    }
    help(command);
    char *text = process.outcome.out;
    for (char *at = text; *at != '\0'; at++) { /* lines that go on are one, so that a command is beside its option */
        const size_t indent = *at == '\n' ? strspn(at + 1, " ") : 0;
        if (indent > 2) {
            memmove(at, at + indent, strlen(at + indent) + 1);
        } else if (*at == '\n' && isgraph((unsigned char)at[1]) && at[-1] != '\n') {
            *at = ' ';
        }
    }
    if (advice_find_foreign(text, words, option)) {
        snprintf(line, sizeof line, "%.*s", (int)sizeof line - 1, strstr(text, option));
        printf("the help of offload %s names %s, which is not its own: %s\n", command, option, line);
        test_failure_count++;
    }
}

/* The program accepts the flags of a page: it complains only about what follows them. Each flag is tried with the first
 * command that takes it. */
static void check_parser(const char *command) {
    static char tried[16384] = " ";
    const char *end = NULL, *at = section("OPTIONS", &end);
    char flag[NAME_BYTES], words[2 * NAME_BYTES];
    for (; (at = next_flag(at, end, flag)) != NULL;) {
        snprintf(words, sizeof words, " %s ", flag);
        const size_t used = strlen(tried);
        if (strcmp(flag, "help") != 0 && at[-(long)strlen(flag) - 3] == '\n' && strstr(tried, words) == NULL) {
            snprintf(tried + used, sizeof tried - used, "%s ", flag);
            snprintf(words, sizeof words, "--%s --zzzzzzzzzzzz", flag);
            const struct ox_option *const option = ox_option_find(flag);
            const bool has_value = option == NULL || option->type != OX_OPT_BOOL;
            const bool needs_value = has_value && strcmp(flag, "resume-from-checkpoint") != 0; /* alone it is latest */
            refused(command, words, needs_value ? " has no value" : "'--zzzzzzzzzzzz' is not a flag");
        }
    }
}

/* Returns whether the tool is installed; it must exit with 0, and with `silent` print nothing. */
static bool check_tool(const char *const *argv, bool silent) {
    static char text[TEXT_BYTES];
    const int status = run_tool(argv, text);
    if (status != 127 && (status != 0 || (silent && text[0] != '\0'))) {
        printf("%s: %s: status %d: %.2000s\n", page, argv[0], status, text);
        test_failure_count++;
    }
    return status != 127;
}

static void check_roff(const char *command) {
    const char *const path = files_write_text("page.1", output);
    const char *const groff[] = {"groff", "-man", "-ww", "-z", "-Tutf8", path, NULL};
    const char *const mandoc[] = {"mandoc", "-T", "lint", "-W", "error", path, NULL};
    const bool has_groff = check_tool(groff, true), has_mandoc = check_tool(mandoc, true);
    if (!has_groff && !has_mandoc && command[0] == '\0') {
        printf("neither groff nor mandoc is here: the pages are checked by their text alone\n");
    }
}

static void test_pages(void) {
    char words[2 * NAME_BYTES];
    for (int i = -1; i < name_count; i++) {
        const char *const command = i < 0 ? "" : names[i];
        snprintf(words, sizeof words, "%s --as man", command);
        help(words);
        CHECK(strlen(output) < sizeof page && strncmp(output, ".TH OFFLOAD", 11) == 0);
        for (const char *at = output; *at != '\0'; at++) {
            CHECK(*at == '\n' || (*at >= ' ' && *at <= '~'));
        }
        check_roff(command);
        unescape(output, page);
        check_section(command, "NAME", 20);
        check_section(command, "SYNOPSIS", 10);
        check_section(command, "DESCRIPTION", i < 0 || mask_of(command) != 0 ? 200 : 20);
        check_section(command, "EXIT STATUS", 50);
        check_section(command, "SEE ALSO", 10);
        check_prose(command);
        if (i >= 0) {
            check_options(command, mask_of(command));
            check_parser(command);
            check_names(command);
        }
        if (mask_of(command) != 0) {
            check_section(command, "EXAMPLES", 50);
        }
    }
    CHECK(mask_of("train") != 0 && mask_of("version") == 0);
}

static void test_train_page(void) {
    const char *end = NULL;
    help("train --as man");
    unescape(output, page);
    CHECK(strstr(page, "\n--max-steps N\n") != NULL && strstr(page, "\nDefault: 1024. From 1 to 16777216.") != NULL);
    CHECK(strstr(page, "\n--dtype fp32|bf16|fp16\n") != NULL && strstr(page, "Also --lr.") != NULL);
    CHECK(strstr(section("FILES", &end), "metrics.jsonl") != NULL);
    CHECK(strstr(section("SIGNALS", &end), "USR1") != NULL);
    help("");
    for (int i = 0; i < name_count; i++) {
        char line[2 * NAME_BYTES];
        snprintf(line, sizeof line, "\n  offload %.90s ", names[i]);
        CHECK(strstr(output, line) != NULL);
    }
}

static void test_errors(void) {
    refused("help", "trian --as man", "'trian' is not a command; did you mean `offload train`?");
    refused("help", "--as pdf", "'pdf' is not one of text, man, bash, zsh, fish, names");
    refused("help", "train --as bash", "--as bash covers all commands; remove 'train'");
    refused("help", "--max-steps 3", "`offload help` does not take --max-steps");
}

/* ---- completion ------------------------------------------------------------------------------------- */

static const char *bash_path;

/* The lines that bash offers for these words, the last of which is being written; each ends with a newline. The test's
 * folder is the working folder. */
static const char *offered(const char *words) {
    static char text[TEXT_BYTES];
    char script[4096];
    const char *path;
    snprintf(script, sizeof script, "cd %s && . %s || exit 1\nCOMP_WORDS=(%s)\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
             "_offload\nfor word in \"${COMPREPLY[@]}\"; do echo \"$word\"; done\n", test_folder(), bash_path, words);
    path = files_write_text("ask.sh", script);
    const char *const argv[] = {"bash", "--norc", path, NULL};
    const int status = run_tool(argv, text);
    if (status != 0) {
        printf("%s: bash gives status %d: %s\n", words, status, text);
        test_failure_count++;
    }
    return text;
}

static void offers(const char *words, const char *lines) {
    const char *const found = offered(words);
    if (strcmp(found, lines) != 0) {
        printf("%s: expected\n%sgot\n%s", words, lines, found);
        test_failure_count++;
    }
}

/* Checks that after "--" every flag of a command is offered, and nothing else. */
static void check_flags(const char *command) {
    char words[2 * NAME_BYTES], line[NAME_BYTES + 4];
    uint32_t count = 0, expected = 0, lines = 0;
    const struct ox_option *const options = ox_options(&count);
    const unsigned mask = mask_of(command);
    snprintf(words, sizeof words, "offload %.90s --", command);
    const char *const found = offered(words);
    for (uint32_t i = 0; i < count; i++) {
        if ((options[i].commands & mask) != 0) {
            expected++;
            snprintf(line, sizeof line, "--%s\n", options[i].name);
            const char *const at = strstr(found, line);
            if (at == NULL || (at > found && at[-1] != '\n')) {
                printf("offload %s: bash does not offer --%s\n", command, options[i].name);
                test_failure_count++;
            }
        }
    }
    for (const char *at = found; *at != '\0'; at++) {
        lines += *at == '\n';
    }
    CHECK(strstr(found, "--help\n") != NULL && lines == expected + (mask != 0 ? 2 : 1));
}

static void test_bash(void) {
    help("--as bash");
    bash_path = files_write_text("offload.bash", output);
    const char *const probe[] = {"bash", "--norc", "-n", bash_path, NULL};
    if (!check_tool(probe, true)) {
        printf("bash is not here: its completion is not run\n");
        return;
    }
    files_make_folder("some folder");
    files_write_text("some text", "");
    offers("offload tr", "train\ntrace\n");
    offers("offload train --max-s", "--max-seq-length\n--max-steps\n");
    CHECK(strstr(offered("offload train --max-"), "--max-steps\n") != NULL);
    offers("offload train --dtype ''", "fp32\nbf16\nfp16\n");
    offers("offload train --dtype =", "fp32\nbf16\nfp16\n");
    offers("offload train --dtype = b", "bf16\n");
    offers("offload train --max-steps ''", "");
    offers("offload train --data some", "some folder\nsome text\n");
    offers("offload train --nvme some", "some folder\n");
    offers("offload doctor --nvme some", "some folder\n");
    offers("offload trace --format =", "text\njson\nchrome\nperfetto\n");
    offers("offload eval --format =", "text\njson\n");
    offers("offload train --nvme x : 4", "");
    offers("offload train --resume lat", "latest\n");
    offers("offload train --batch", "--batch-size\n");
    offers("offload generate --no-c", "--no-chat\n");
    offers("offload bench a", "adam\nall\n");
    offers("offload bench adam --stri", "--strict\n");
    offers("offload inspect some", "some folder\nsome text\n");
    offers("offload help gen", "generate\n");
    offers("offload help --as z", "zsh\n");
    offers("offload train --seed 1 --see", "");
    offers("offload train --nvme x --nv", "--nvme\n");
    offers("offload zzz --", "");
    for (int i = 0; i < name_count; i++) {
        check_flags(names[i]);
    }
}

/* zsh and fish: the syntax of both scripts, and what fish offers. */
static void test_other_shells(void) {
    static char text[TEXT_BYTES], script[SYS_PATH_BYTES + 128];
    const char *path;
    help("--as zsh");
    CHECK(strncmp(output, "#compdef offload\n", 17) == 0);
    path = files_write_text("_offload", output);
    const char *const zsh[] = {"zsh", "-f", "-n", path, NULL};
    if (!check_tool(zsh, true)) {
        printf("zsh is not here: the syntax of its completion is not checked\n");
    }
    help("--as fish");
    path = files_write_text("offload.fish", output);
    setenv("XDG_CONFIG_HOME", test_folder(), 1);
    setenv("XDG_DATA_HOME", test_folder(), 1);
    snprintf(script, sizeof script, "source %s; complete -C 'offload train --max-st'; complete -C 'offload bench a'",
             path);
    const char *const fish_check[] = {"fish", "--no-config", "-n", path, NULL};
    const char *const fish[] = {"fish", "--no-config", "-c", script, NULL};
    if (!check_tool(fish_check, true)) {
        printf("fish is not here: its completion is not run\n");
    } else {
        CHECK(run_tool(fish, text) == 0 && strncmp(text, "--max-steps\t", 12) == 0);
        CHECK(strstr(text, "\nadam\nall\n") != NULL);
    }
}

/* ---- what pages show -------------------------------------------------------------------------------- */

static unsigned bit_of(const char *name, size_t bytes) {
    static const struct {
        const char *name;
        unsigned bit;
    } commands[] = {{"train", OX_CMD_TRAIN}, {"plan", OX_CMD_PLAN}, {"eval", OX_CMD_EVAL}, {"doctor", OX_CMD_DOCTOR},
                    {"bench", OX_CMD_BENCH}, {"export", OX_CMD_EXPORT}, {"merge", OX_CMD_MERGE},
                    {"average", OX_CMD_AVERAGE}, {"unlock", OX_CMD_UNLOCK}, {"inspect", OX_CMD_INSPECT},
                    {"tokenize", OX_CMD_TOKENIZE}, {"init", OX_CMD_INIT}, {"generate", OX_CMD_GENERATE},
                    {"trace", OX_CMD_TRACE}, {"compare", OX_CMD_COMPARE}, {"top", OX_CMD_TOP},
                    {"store", OX_CMD_STORE}, {"help", OX_CMD_HELP}};
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strlen(commands[i].name) == bytes && strncmp(commands[i].name, name, bytes) == 0) {
            return commands[i].bit;
        }
    }
    return 0;
}

/* Every flag of a command that a page shows exists for that command; returns how many there were. A comment or another
 * program ends it. */
static unsigned check_shown(const char *path, const char *line, size_t bytes) {
    static const char program[] = "offload ";
    char text[1024], name[NAME_BYTES];
    unsigned count = 0;
    snprintf(text, sizeof text, "%.*s", (int)bytes, line);
    char *const begin = strncmp(text, "    ", 4) == 0 ? strstr(text, program) : NULL;
    if (begin == NULL) {
        return 0;
    }
    begin[strcspn(begin, "#|;`")] = '\0';
    const char *const command = begin + sizeof program - 1;
    const unsigned bit = bit_of(command, strcspn(command, " "));
    for (const char *at = begin; bit != 0 && (at = strstr(at, " --")) != NULL; at += 3) {
        snprintf(name, sizeof name, "%.*s", (int)strspn(at + 3, "abcdefghijklmnopqrstuvwxyz0123456789-_"), at + 3);
        for (char *c = name; *c != '\0'; c++) {
            *c = (char)(*c == '_' ? '-' : *c);
        }
        const bool found = ox_option_find_in(name, bit) != NULL || strcmp(name, "config") == 0 || /* read before */
                           (strncmp(name, "no-", 3) == 0 && ox_option_find_in(name + 3, bit) != NULL);
        if (!found) {
            printf("%s: --%s is no flag: %s\n", path, name, text);
            test_failure_count++;
        }
        count++;
    }
    return count;
}

static void test_shown_commands(void) {
    static const char *const pages[] = {
        "README.md", "docs/usage.md", "docs/data.md", "docs/conversations.md", "docs/from-scratch.md", "docs/gpu.md",
        "docs/lora.md", "docs/mixtures.md", "docs/optimizer.md", "docs/planning.md", "docs/preferences.md",
        "docs/ranks.md", "docs/strategies.md", "docs/tracing.md", "docs/watching.md", "docs/benchmarks.md",
        "docs/families.md", "docs/reliability.md"};
    unsigned count = 0;
    for (unsigned i = 0; i < sizeof pages / sizeof *pages; i++) {
        char *text = NULL;
        size_t bytes = 0;
        REQUIRE_OK(ox_file_read(pages[i], 1 << 20, &text, &bytes));
        for (const char *line = text; *line != '\0'; line += line[strcspn(line, "\n")] == '\n') {
            const size_t length = strcspn(line, "\n");
            count += check_shown(pages[i], line, length);
            line += length;
        }
        free(text);
    }
    CHECK(count > 150);
    printf("%u flags in commands of pages\n", count);
}

int main(void) {
    read_names();
    test_shown_commands();
    test_pages();
    test_train_page();
    test_errors();
    test_bash();
    test_other_shells();
    return test_end();
}
