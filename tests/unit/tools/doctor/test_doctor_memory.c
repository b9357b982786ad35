/* What `offload doctor` says of memory: control groups, and memory that no run could use. */
#include "base/bytes.h"
#include "tests/kit/test.h"
#include "tools/doctor/doctor.h"

#include <string.h>
#include <sys/resource.h>

static struct ox_doctor doctor;

static const struct ox_doctor_item *item_of(const struct ox_memory *memory, const char *name) {
    memset(&doctor, 0, sizeof doctor);
    ox_doctor_memory(&doctor, memory);
    for (uint32_t i = 0; i < doctor.count; i++) {
        if (strcmp(doctor.items[i].name, name) == 0) {
            return &doctor.items[i];
        }
    }
    printf("%s: absent\n", name);
    exit(1);
}

static bool says(const struct ox_doctor_item *item, const char *value, const char *warning, const char *remedy) {
    const bool right = strcmp(item->value, value) == 0 && strcmp(item->warning, warning) == 0 &&
                       strstr(item->remedy, remedy) != NULL;
    if (!right) {
        printf("%s: \"%s\", \"%s\", \"%s\"\n", item->name, item->value, item->warning, item->remedy);
    }
    return right;
}

int main(void) {
    struct ox_memory memory = {.total = 64 * OX_GIB, .available = 50 * OX_GIB, .limit = UINT64_MAX,
                               .usable = 50 * OX_GIB};
    CHECK(says(item_of(&memory, "RAM"), "64.0 GiB, 50.0 GiB available", "", ""));
    CHECK(says(item_of(&memory, "control group"), "no limit below the RAM", "", ""));

    memory.limit = 4 * OX_GIB;
    memory.usable = 3 * OX_GIB;
    CHECK(says(item_of(&memory, "control group"),
               "4.00 GiB for all programs of this container, service or job; 3.00 GiB left",
               "programs here can use 4.00 GiB of the 64.0 GiB of RAM; beyond that the kernel kills one of them",
               "nothing if 3.00 GiB suffice: a run without --host-mem keeps below them"));
    CHECK(!item_of(&memory, "control group")->unusable && !item_of(&memory, "RAM")->unusable);

    memory.usable = 10 * OX_MIB;
    CHECK(item_of(&memory, "RAM")->unusable);
    CHECK(says(item_of(&memory, "RAM"), "64.0 GiB, 50.0 GiB available",
               "this process can use 10.0 MiB, less than the smallest run needs", "raise the limits named below"));

    const struct rlimit small = {.rlim_cur = OX_MIB, .rlim_max = OX_MIB};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(says(item_of(&memory, "file size"), "1.00 MiB",
               "1.00 MiB are less than the smallest run needs", "ulimit -f unlimited"));
    CHECK(item_of(&memory, "file size")->unusable);
    return test_end();
}
