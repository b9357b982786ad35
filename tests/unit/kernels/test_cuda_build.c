/* The CUDA plugin holds the machine code that it says: each kernel file holds code for every GPU named, and PTX for
 * later ones. Read from the file, so it needs no GPU; skipped where the build has no plugin. nvcc puts the code of a
 * file into a container (magic 0xba55ed50, two of version, two of header size, eight of size), whose entries begin with
 * kind (1 PTX, 2 machine code), version, header size, eight of size, and at 28 the architecture; the payload may be
 * compressed, the headers are not. */
#include "kernels/cuda.h"
#include "tests/kit/test.h"

#include <elf.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define CONTAINER_MAGIC UINT32_C(0xba55ed50)
enum { CONTAINER_BYTES = 16, ENTRY_BYTES = 32 };
enum { KIND_PTX = 1, KIND_CODE = 2 };

struct image {
    const uint8_t *bytes;
    size_t count;
};

static uint64_t read_le(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | at[i];
    }
    return value;
}

/* True when the container's entries hold `arch` as `kind`; `*whole` is false when they do not add up. */
static bool holds(struct image entries, unsigned kind, unsigned arch, bool *whole) {
    bool found = false;
    size_t at = 0;
    while (at + ENTRY_BYTES <= entries.count) {
        const uint64_t header = read_le(entries.bytes + at + 4, 4), payload = read_le(entries.bytes + at + 8, 8);
        if (header < ENTRY_BYTES || payload == 0 || header + payload > entries.count - at) {
            break;
        }
        found |= read_le(entries.bytes + at, 2) == kind && read_le(entries.bytes + at + 28, 4) == arch;
        at += header + payload;
    }
    *whole = at == entries.count;
    return found;
}

/* Returns how many containers there are; counts those in which something of `built_for` is absent, and names it. */
static uint32_t examine(struct image section, const char *built_for, bool tells, uint32_t *lacking) {
    uint32_t containers = 0;
    *lacking = 0;
    for (size_t at = 0; at + CONTAINER_BYTES <= section.count; containers++) {
        const uint64_t magic = read_le(section.bytes + at, 4), header = read_le(section.bytes + at + 6, 2);
        const uint64_t size = read_le(section.bytes + at + 8, 8);
        if (magic != CONTAINER_MAGIC || header < CONTAINER_BYTES ||
            header + size > section.count - at) {
            break;
        }
        const struct image entries = {section.bytes + at + header, size};
        char words[256];
        bool whole = true, all = true;
        snprintf(words, sizeof words, "%s", built_for);
        for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;) {
            const bool ptx = strncmp(word, "compute_", 8) == 0;
            CHECK(ptx || strncmp(word, "sm_", 3) == 0);
            const unsigned arch = (unsigned)strtoul(word + (ptx ? 8 : 3), NULL, 10);
            if (!holds(entries, ptx ? KIND_PTX : KIND_CODE, arch, &whole) || !whole) {
                if (tells) {
                    printf("  the container at %zu of .nv_fatbin lacks %s\n", at, word);
                }
                all = false;
            }
        }
        *lacking += !all;
        at += header + size;
        at += (8 - at % 8) % 8;
    }
    return containers;
}

/* One container with the given kinds and architectures, each with a payload of eight bytes. */
static struct image compose(uint8_t *bytes, const unsigned (*entries)[2], unsigned count) {
    enum { PAYLOAD_BYTES = 8 };
    memset(bytes, 0, CONTAINER_BYTES + (size_t)count * (ENTRY_BYTES + PAYLOAD_BYTES));
    memcpy(bytes, "\x50\xed\x55\xba\x01\x00\x10\x00", 8);
    bytes[8] = (uint8_t)(count * (ENTRY_BYTES + PAYLOAD_BYTES));
    uint8_t *at = bytes + CONTAINER_BYTES;
    for (unsigned i = 0; i < count; i++, at += ENTRY_BYTES + PAYLOAD_BYTES) {
        at[0] = (uint8_t)entries[i][0];
        at[4] = ENTRY_BYTES;
        at[8] = PAYLOAD_BYTES;
        at[28] = (uint8_t)entries[i][1];
    }
    return (struct image){bytes, (size_t)(at - bytes)};
}

/* The reader notices what is absent. */
static void test_reader(void) {
    static const unsigned entries[3][2] = {{KIND_CODE, 80}, {KIND_PTX, 120}, {KIND_CODE, 120}};
    uint8_t bytes[256];
    uint32_t lacking = 9;
    struct image section = compose(bytes, entries, 3);
    CHECK(examine(section, "sm_80 sm_120 compute_120", false, &lacking) == 1 && lacking == 0);
    CHECK(examine(section, "sm_80 sm_90 compute_120", false, &lacking) == 1 && lacking == 1);
    CHECK(examine(section, "sm_80 compute_80", false, &lacking) == 1 && lacking == 1);
    section.count -= 8; /* cut off */
    CHECK(examine(section, "sm_80", false, &lacking) == 0);
    bytes[CONTAINER_BYTES + 8] = 9; /* entries that overlap */
    section.count += 8;
    CHECK(examine(section, "sm_80", false, &lacking) == 1 && lacking == 1);
    bytes[0] = 0;
    CHECK(examine(section, "sm_80", false, &lacking) == 0);
}

static struct image read_whole(const char *path) {
    FILE *const file = fopen(path, "rb");
    struct image image = {0};
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        return image;
    }
    const long size = ftell(file);
    uint8_t *const bytes = size > 0 ? malloc((size_t)size) : NULL;
    rewind(file);
    if (bytes != NULL && fread(bytes, 1, (size_t)size, file) == (size_t)size) {
        image = (struct image){bytes, (size_t)size};
    }
    fclose(file);
    return image;
}

static struct image find_section(struct image file, const char *name) {
    Elf64_Ehdr header;
    if (file.count < sizeof header) {
        return (struct image){0};
    }
    memcpy(&header, file.bytes, sizeof header);
    CHECK(memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_shentsize == sizeof(Elf64_Shdr));
    Elf64_Shdr names, section;
    memcpy(&names, file.bytes + header.e_shoff + (size_t)header.e_shstrndx * sizeof names, sizeof names);
    for (unsigned i = 0; i < header.e_shnum; i++) {
        memcpy(&section, file.bytes + header.e_shoff + (size_t)i * sizeof section, sizeof section);
        if (strcmp((const char *)file.bytes + names.sh_offset + section.sh_name, name) == 0) {
            return (struct image){file.bytes + section.sh_offset, section.sh_size};
        }
    }
    return (struct image){0};
}

int main(void) {
    test_reader();
    char path[PATH_MAX];
    test_build_path("liboffload_cuda.so", path);
    if (access(path, R_OK) != 0) {
        if (test_failure_count > 0) {
            return test_end();
        }
        test_skip("this build has no CUDA plugin");
    }
    struct ox_cuda_plugin_info about;
    REQUIRE_OK(ox_cuda_plugin_query(path, &about));
    const struct image file = read_whole(path);
    const struct image section = find_section(file, ".nv_fatbin");
    uint32_t lacking = 0;
    const uint32_t containers = examine(section, about.built_for, true, &lacking);
    printf("%u files of kernels, built for %s\n", containers, about.built_for);
    CHECK(containers > 0 && lacking == 0);
    free((void *)file.bytes);
    return test_end();
}
