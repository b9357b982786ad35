/* Profiles of machines: what is read is what was written, everything else is refused by name, and the committed
 * examples are complete and sourced. */
#include "offload/sim/machine_profile.h"
#include "offload/sim/sim.h"
#include "tests/kit/test.h"

#include "base/file.h"
#include "base/json.h"

#include <dirent.h>
#include <math.h>
#include <string.h>

enum { PROFILES_LEAST = 6 };

static const struct ox_machine full = {
    .name = "a box", .source = "made up",
    .has_gpu = true,
    .gpu = {.name = "a card", .memory_bytes = 25769803776, .bf16_flops = 140.1e12, .fp32_flops = 70e12,
            .h2d_rate = 26.8e9, .d2h_rate = 26.7e9, .duplex_rate = 1e11 / 3,
            .machines = 16, .net_rate = 4e10, .net_latency = 5e-6,
            .count = 4, .links_rate = 8e10, .peer_rate = 4.5e11, .peer_of_links = 0.25, .attention_flops = 90e12,
            .attention_backward_flops = 60.5e12, .mha_attention_flops = 110e12,
            .mha_attention_backward_flops = 80.5e12},
    .host = {.memory_bytes = 137438953472, .cores = 16, .dram_rate = 67e9, .core_flops = 0.1e12, .flops = 1.1e12,
             .bf16_flops = 2.3e12, .adam = {.threads = 8, .seconds = {0.39e-9, 0.26e-9, 0.17e-9}}},
    .drives = {{.name = "one", .read_rate = 6.5e9, .write_rate = 4e9, .mix_rate = 1e10 / 3, .latency_seconds = 80e-6,
                .flush_seconds = 2e-3, .read_core_seconds = 2e-11, .write_core_seconds = 1e-11,
                .capacity_bytes = 4000000000000, .endurance_bytes = 2400000000000000},
               {.name = "two", .read_rate = 7e9, .write_rate = 5e9, .mix_rate = 6e9, .latency_seconds = 90e-6,
                .flush_seconds = 1e-3}},
    .drive_count = 2,
    .comm = {{.ranks = 2, .gather_rate = 12e9, .exchange_rate = 1e10 / 3, .pair_rate = 5e9, .meet_seconds = 7e-6},
             {.ranks = 8, .gather_rate = 4e9, .exchange_rate = 2e9, .meet_seconds = 3e-5}},
    .comm_count = 2,
    .task_seconds = 5e-6,
};

static json_t *full_json(void) {
    json_t *const json = ox_machine_json(&full, NULL);
    CHECK(json != NULL);
    return json;
}

static enum ox_status parse(const json_t *json, struct ox_machine *out) {
    char *const text = json_dumps(json, 0);
    const enum ox_status status = ox_machine_parse("box.json", text, strlen(text), out);
    free(text);
    return status;
}

/* Ranks fill one machine after the other, and a rank has its part of one. */
static void check_machines(void) {
    struct ox_machine one = full, part;
    CHECK(ox_machine_ranks(&one, 2) == 2 && ox_machine_ranks(&one, 4) == 4 && ox_machine_ranks(&one, 64) == 4);
    CHECK(ox_machine_ranks(&one, 128) == 8); /* as if each had more */
    ox_machine_of_rank(&one, 64, &part);
    CHECK(part.host.cores == 4 && part.host.dram_rate == full.host.dram_rate / 4);
    one.gpu.machines = 0;
    CHECK(ox_machine_ranks(&one, 64) == 64);
    /* Four ranks divide features, eight micro-batches; two coordinates of a pipeline; eight GPUs a machine. */
    one = full;
    one.gpu.count = 8;
    const struct ox_plan_input input = {.ranks = {.count = 64, .pipe = 2, .tensors = 4, .sharding = OX_SHARDING_FULL}};
    uint32_t here[3];
    CHECK(ox_sim_net_share(&one, &input, OX_AXIS_TENSOR, &here[0]) == 0 && here[0] == 4);
    CHECK(ox_sim_net_share(&one, &input, OX_AXIS_SHARD, &here[1]) == 6.0 / 7 && here[1] == 2);
    CHECK(ox_sim_net_share(&one, &input, OX_AXIS_PIPE, &here[2]) == 1 && here[2] == 1);
    json_t *const json = full_json();
    CHECK(json_object_del(json_object_get(json, "gpu"), "net_bytes_per_second") == 0);
    CHECK(parse(json, &part) == OX_E_CONFIG && strstr(ox_error_text(), "\"net_bytes_per_second\"") != NULL);
    json_decref(json);
}

/* ---- there and back ------------------------------------------------------------------------------------ */

static bool same_drive(const struct ox_machine_drive *a, const struct ox_machine_drive *b) {
    return strcmp(a->name, b->name) == 0 && a->read_rate == b->read_rate && a->write_rate == b->write_rate &&
           a->mix_rate == b->mix_rate && a->latency_seconds == b->latency_seconds &&
           a->flush_seconds == b->flush_seconds && a->read_core_seconds == b->read_core_seconds &&
           a->write_core_seconds == b->write_core_seconds && a->capacity_bytes == b->capacity_bytes &&
           a->endurance_bytes == b->endurance_bytes;
}

static bool same_host(const struct ox_machine_host *a, const struct ox_machine_host *b) {
    return a->memory_bytes == b->memory_bytes && a->cores == b->cores && a->dram_rate == b->dram_rate &&
           a->core_flops == b->core_flops && a->flops == b->flops && a->bf16_flops == b->bf16_flops &&
           a->adam.threads == b->adam.threads &&
           memcmp(a->adam.seconds, b->adam.seconds, sizeof a->adam.seconds) == 0;
}

static bool same_gpu(const struct ox_machine_gpu *a, const struct ox_machine_gpu *b) {
    return a->machines == b->machines && a->net_rate == b->net_rate && a->net_latency == b->net_latency &&
           strcmp(a->name, b->name) == 0 && a->memory_bytes == b->memory_bytes && a->bf16_flops == b->bf16_flops &&
           a->fp32_flops == b->fp32_flops && a->h2d_rate == b->h2d_rate && a->d2h_rate == b->d2h_rate &&
           a->duplex_rate == b->duplex_rate && a->count == b->count && a->links_rate == b->links_rate &&
           a->peer_rate == b->peer_rate && a->peer_of_links == b->peer_of_links &&
           a->attention_flops == b->attention_flops &&
           a->attention_backward_flops == b->attention_backward_flops &&
           a->mha_attention_flops == b->mha_attention_flops &&
           a->mha_attention_backward_flops == b->mha_attention_backward_flops;
}

static bool same_comm(const struct ox_machine_comm *a, const struct ox_machine_comm *b) {
    return a->ranks == b->ranks && a->gather_rate == b->gather_rate && a->exchange_rate == b->exchange_rate &&
           a->pair_rate == b->pair_rate && a->meet_seconds == b->meet_seconds;
}

static bool same(const struct ox_machine *a, const struct ox_machine *b) {
    bool drives = a->drive_count == b->drive_count;
    for (uint32_t i = 0; i < a->drive_count && drives; i++) {
        drives = same_drive(&a->drives[i], &b->drives[i]);
    }
    drives = drives && a->comm_count == b->comm_count;
    for (uint32_t i = 0; i < a->comm_count && drives; i++) {
        drives = same_comm(&a->comm[i], &b->comm[i]);
    }
    return drives && strcmp(a->name, b->name) == 0 && strcmp(a->source, b->source) == 0 && a->has_gpu == b->has_gpu &&
           same_gpu(&a->gpu, &b->gpu) && same_host(&a->host, &b->host) && a->task_seconds == b->task_seconds;
}

static void test_there_and_back(void) {
    char path[OX_PATH_BYTES];
    static struct ox_machine machine, read;
    REQUIRE_OK(ox_path_join(test_folder(), "machine.json", path));
    REQUIRE_OK(ox_machine_save(path, &full, json_pack("{s:[i,i]}", "anything", 1, 2)));
    REQUIRE_OK(ox_machine_load(path, &read));
    CHECK(same(&read, &full));
    machine = full;
    machine.has_gpu = false;
    memset(&machine.gpu, 0, sizeof machine.gpu);
    machine.drive_count = 0;
    machine.host.adam.seconds[OX_MOMENTS_F32] = 0.0;
    REQUIRE_OK(ox_machine_save(path, &machine, NULL));
    REQUIRE_OK(ox_machine_load(path, &read));
    CHECK(same(&read, &machine) && read.host.adam.seconds[OX_MOMENTS_F32] == 0.0);
    machine.host.dram_rate = 0.0;
    CHECK(ox_machine_save(path, &machine, json_object()) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "machine.json: host: \"dram_bytes_per_second\" must be positive") != NULL);
    REQUIRE_OK(ox_machine_load(path, &read)); /* the older file is still there */
    CHECK(ox_machine_load("/nonexistent/x.json", &read) != OX_OK);
}

static void test_together(void) {
    static struct ox_machine machine;
    machine = full;
    uint64_t speeds[2];
    const struct ox_machine_drive all = ox_machine_drives(&machine);
    /* The second drive has 6 of 9.33 parts, and is the first to be at its limit. */
    CHECK(all.mix_rate == 1e10 / 3 + 6e9);
    CHECK(fabs(all.read_rate / (7e9 * all.mix_rate / 6e9) - 1) < 1e-15);
    CHECK(fabs(all.write_rate / (5e9 * all.mix_rate / 6e9) - 1) < 1e-15);
    CHECK(ox_machine_drive_speeds(&machine, speeds) && speeds[0] == 3333333333 && speeds[1] == 6000000000);
    CHECK(all.latency_seconds == 90e-6 && all.flush_seconds == 2e-3);
    CHECK(all.capacity_bytes == 0 && all.endurance_bytes == 0); /* not known of one of the drives */
    CHECK(all.read_core_seconds == 0 && all.write_core_seconds == 0);
    machine.drives[1].read_core_seconds = 4e-11;
    machine.drives[1].write_core_seconds = 2.4e-11;
    const struct ox_machine_drive known = ox_machine_drives(&machine); /* shares are 5 and 9 of 14 */
    CHECK(fabs(known.read_core_seconds - (5 * 2 + 9 * 4) / 14.0 * 1e-11) < 1e-20);
    CHECK(fabs(known.write_core_seconds - (5 * 1 + 9 * 2.4) / 14.0 * 1e-11) < 1e-20);
    machine.drives[1].mix_rate = machine.drives[0].mix_rate;
    CHECK(!ox_machine_drive_speeds(&machine, speeds));
    machine.drive_count = 1;
    CHECK(!ox_machine_drive_speeds(&machine, speeds));
    CHECK(ox_machine_drives(&machine).capacity_bytes == 4000000000000);
    machine.drive_count = 0;
    CHECK(ox_machine_drives(&machine).read_rate == 0.0 && ox_machine_drives(&machine).capacity_bytes == 0);
}

/* A profile that was written before there were rates for each kind of heads. */
static void test_older(void) {
    static const char *const newer[] = {"mha_attention_flops_per_second", "mha_attention_backward_flops_per_second"};
    static struct ox_machine machine;
    json_t *const top = full_json();
    for (unsigned i = 0; i < 2; i++) {
        CHECK(json_object_del(json_object_get(top, "gpu"), newer[i]) == 0);
    }
    REQUIRE_OK(parse(top, &machine));
    CHECK(machine.gpu.attention_flops == 90e12 && machine.gpu.attention_backward_flops == 60.5e12);
    CHECK(machine.gpu.mha_attention_flops == 0 && machine.gpu.mha_attention_backward_flops == 0);
    json_decref(top);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static json_t *inner(json_t *top, const char *object) {
    if (object == NULL) {
        return top;
    }
    if (strchr(object, '[') != NULL) { /* "drives[1]", "comm[0]" */
        char list[16];
        snprintf(list, sizeof list, "%.*s", (int)strcspn(object, "["), object);
        return json_array_get(json_object_get(top, list), (size_t)(object[strcspn(object, "[") + 1] - '0'));
    }
    if (strcmp(object, "host.adam") == 0) {
        return json_object_get(json_object_get(top, "host"), "adam");
    }
    return json_object_get(top, object);
}

/* Changes object.key to `text` as JSON, or removes it where that is NULL; the refusal must name file and thing. */
static void refused(const char *object, const char *key, const char *text, const char *expected) {
    static struct ox_machine machine;
    json_t *const top = full_json(), *const changed = inner(top, object);
    json_t *const value = text == NULL ? NULL : json_loads(text, JSON_DECODE_ANY, NULL);
    CHECK(changed != NULL && (text == NULL ? json_object_del(changed, key)
                                           : json_object_set_new(changed, key, value)) == 0);
    const enum ox_status status = parse(top, &machine);
    if (status != OX_E_CONFIG || strncmp(ox_error_text(), "box.json: ", 10) != 0 ||
        strstr(ox_error_text(), expected) == NULL) {
        printf("%s %s = %s: expected '%s', got %s\n", object == NULL ? "top" : object, key,
               text == NULL ? "(removed)" : text, expected, status == OX_OK ? "no error" : ox_error_text());
        test_failure_count++;
    }
    json_decref(top);
}

static void test_refusals(void) {
    static struct ox_machine machine;
    refused(NULL, "offload_profile", NULL, "the key \"offload_profile\" is missing");
    refused(NULL, "offload_profile", "1", "is a profile of format 1");
    refused(NULL, "name", NULL, "\"name\" is missing");
    refused(NULL, "name", "\"\"", "\"name\" is empty");
    refused(NULL, "source", "3", "\"source\" must be a string");
    refused(NULL, "gpus", "{}", "the key \"gpus\" is not known");
    refused(NULL, "gpu", "[]", "gpu: must be an object");
    refused(NULL, "host", NULL, "host: the key is missing");
    refused(NULL, "drives", NULL, "\"drives\" must be a list");
    refused(NULL, "drives", "{}", "\"drives\" must be a list");
    refused(NULL, "drives", "[3]", "drives[0]: must be an object");
    refused(NULL, "task_seconds", "0", "\"task_seconds\" must be positive");
    refused("gpu", "memory_bytes", "-1", "gpu: \"memory_bytes\" must be positive");
    refused("gpu", "memory_bytes", "24", "gpu: \"memory_bytes\" is 24, which lies outside");
    refused("gpu", "memory_bytes", "24000000000.5", "must be a whole number");
    refused("gpu", "h2d_bytes_per_second", "26.8", "give it in bytes per second");
    refused("gpu", "bf16_flops_per_second", "140", "give it in operations per second");
    refused("gpu", "bf16_flops_per_second", "\"fast\"", "gpu: \"bf16_flops_per_second\" must be a number");
    refused("gpu", "duplex_bytes_per_second", "null", "gpu: the key \"duplex_bytes_per_second\" is missing");
    refused("gpu", "attention_backward_flops_per_second", "60", "give it in operations per second");
    refused("gpu", "mha_attention_backward_flops_per_second", "60", "give it in operations per second");
    refused("gpu", "cores", "4", "gpu: the key \"cores\" is not known");
    refused("host", "cores", "0", "host: \"cores\" must be positive");
    refused("host", "cores", "1.5", "host: \"cores\" must be a whole number");
    refused("host", "bf16_flops_per_second", "340", "give it in operations per second");
    refused("host", "bf16_flops_per_second", "0", "host: \"bf16_flops_per_second\" must be positive");
    refused("host", "adam", NULL, "host.adam: the key is missing");
    refused("host.adam", "threads", "true", "host.adam: \"threads\" must be a number");
    refused("host.adam", "f32_seconds_per_param", "0.39", "host.adam: \"f32_seconds_per_param\" is 0.39");
    refused("host.adam", "f16_seconds_per_param", "1e-9", "host.adam: the key \"f16_seconds_per_param\" is not known");
    refused("drives[1]", "latency_seconds", "80000", "drives[1]: \"latency_seconds\" is 80000");
    refused("drives[1]", "mix_bytes_per_second", NULL, "drives[1]: the key \"mix_bytes_per_second\" is missing");
    refused("drives[1]", "read_core_seconds_per_byte", "0.02", "drives[1]: \"read_core_seconds_per_byte\" is 0.02");
    refused("drives[1]", "capacity_bytes", "0", "drives[1]: \"capacity_bytes\" must be positive");
    refused(NULL, "comm", "3", "\"comm\" must be a list");
    refused(NULL, "comm", "[{}]", "comm[0]: the key \"ranks\" is missing");
    refused("comm[1]", "ranks", "2", "comm[1]: \"ranks\" must grow from object to object, but is 2 after 2");
    refused("comm[0]", "gather_bytes_per_second", "12", "comm[0]: \"gather_bytes_per_second\" is 12");
    refused("comm[0]", "meet_seconds", NULL, "comm[0]: the key \"meet_seconds\" is missing");
    refused("comm[1]", "latency", "1", "comm[1]: the key \"latency\" is not known");
    refused(NULL, "sources", "[]", "\"sources\" must be an object");
    refused(NULL, "sources", "{\"gpu.speed\": \"a page\"}", "sources: \"gpu.speed\" is no value");
    refused(NULL, "sources", "{\"gpu.memory_bytes\": 3}", "sources: \"gpu.memory_bytes\" must be a text");
    CHECK(ox_machine_parse("box.json", "[]", 2, &machine) == OX_E_CONFIG);
    CHECK(ox_machine_parse("box.json", "{", 1, &machine) == OX_E_CORRUPT);
}

static void test_more_refusals(void) {
    static struct ox_machine machine;
    json_t *const top = full_json(), *const drives = json_object_get(top, "drives");
    while (json_array_size(drives) <= OX_MACHINE_DRIVES_MAX) {
        json_array_append_new(drives, json_deep_copy(json_array_get(drives, 0)));
    }
    CHECK(parse(top, &machine) == OX_E_CONFIG && strstr(ox_error_text(), "at most 64") != NULL);
    json_decref(top);
    char name[OX_MACHINE_NAME_BYTES + 1];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    json_t *const other = full_json();
    json_object_set_new(other, "name", json_string(name));
    CHECK(parse(other, &machine) == OX_E_CONFIG && strstr(ox_error_text(), "at most 127 are taken") != NULL);
    json_object_set_new(other, "name", json_string(name + 1));
    REQUIRE_OK(parse(other, &machine));
    json_object_clear(inner(other, "host.adam"));
    json_object_set_new(inner(other, "host.adam"), "threads", json_integer(2));
    CHECK(parse(other, &machine) == OX_E_CONFIG && strstr(ox_error_text(), "not one format") != NULL);
    json_decref(other);
}

/* ---- the examples -------------------------------------------------------------------------------------- */

/* Every value of an object has a source under its name. */
static void check_sourced(const char *path, const json_t *sources, const char *prefix, json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        char place[128];
        snprintf(place, sizeof place, "%s%s", prefix, key);
        if (json_is_number(value) && json_object_get(sources, place) == NULL) {
            printf("%s: %s has no source\n", path, place);
            test_failure_count++;
        }
    }
}

/* A file that `offload bench all` wrote has one source of all its values. */
static void check_example(const char *path) {
    static const char written[] = "measured by `offload bench all` on ";
    static struct ox_machine machine;
    json_t *top = NULL;
    REQUIRE_OK(ox_machine_load(path, &machine));
    REQUIRE_OK(ox_json_load(path, OX_MACHINE_FILE_BYTES_MAX, &top));
    if (strncmp(json_string_value(json_object_get(top, "source")), written, sizeof written - 1) == 0) {
        json_decref(top);
        return;
    }
    const json_t *const sources = json_object_get(top, "sources");
    json_t *const host = json_object_get(top, "host"), *const drives = json_object_get(top, "drives");
    check_sourced(path, sources, "gpu.", json_object_get(top, "gpu"));
    check_sourced(path, sources, "host.", host);
    check_sourced(path, sources, "host.adam.", json_object_get(host, "adam"));
    for (size_t i = 0; i < json_array_size(drives); i++) {
        check_sourced(path, sources, "drives.", json_array_get(drives, i));
    }
    CHECK(json_object_get(sources, "task_seconds") != NULL && machine.drive_count == json_array_size(drives));
    json_decref(top);
}

static void test_examples(void) {
    static const char folder_path[] = "docs/profiles";
    char path[OX_PATH_BYTES];
    unsigned count = 0;
    DIR *const folder = opendir(folder_path);
    if (folder == NULL) {
        printf("%s is not here; tests run from the root of the sources\n", folder_path);
        test_failure_count++;
        return;
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *const end = strrchr(entry->d_name, '.');
        if (end != NULL && strcmp(end, ".json") == 0) {
            REQUIRE_OK(ox_path_join(folder_path, entry->d_name, path));
            check_example(path);
            count++;
        }
    }
    closedir(folder);
    CHECK(count >= PROFILES_LEAST);
}

/* ---- ranks --------------------------------------------------------------------------------------------- */

/* Each of four ranks has a GPU, a quarter of the rest, and of the link what is left when all use it. */
static void test_of_rank(void) {
    static struct ox_machine part;
    ox_machine_of_rank(&full, 1, &part);
    CHECK(same(&full, &part));
    ox_machine_of_rank(&full, 4, &part);
    CHECK(part.host.cores == 4 && part.host.memory_bytes == 34359738368 && part.host.dram_rate == 16.75e9);
    CHECK(part.host.flops == 0.275e12 && part.host.core_flops == 0.1e12 && part.host.bf16_flops == 0.575e12);
    CHECK(part.drives[0].read_rate == 1.625e9 && part.drives[1].write_rate == 1.25e9 && part.drive_count == 2);
    CHECK(part.drives[0].latency_seconds == 80e-6 && part.drives[0].capacity_bytes == 1000000000000);
    CHECK(part.gpu.bf16_flops == 140.1e12 && part.gpu.memory_bytes == full.gpu.memory_bytes);
    CHECK(part.gpu.h2d_rate == 20e9 && part.gpu.duplex_rate == 20e9 && part.gpu.peer_rate == 4.5e11);
    struct ox_machine one = full;
    one.gpu.machines = 0;
    ox_machine_of_rank(&one, 32, &part);
    CHECK(part.host.cores == 1 && part.host.flops == 1.1e12 / 32);
}

/* The figures of as many ranks, else of the next number above, else of the largest. */
static void test_comm(void) {
    static const struct {
        uint32_t ranks, found;
    } cases[] = {{2, 0}, {3, 1}, {4, 1}, {8, 1}, {64, 1}};
    static struct ox_machine none;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(ox_machine_comm_of(&full, cases[i].ranks) == &full.comm[cases[i].found]);
    }
    CHECK(ox_machine_comm_of(&none, 2) == NULL);
}

int main(void) {
    check_machines();
    test_there_and_back();
    test_of_rank();
    test_comm();
    test_together();
    test_older();
    test_refusals();
    test_more_refusals();
    test_examples();
    return test_end();
}
