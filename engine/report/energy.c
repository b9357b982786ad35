#include "engine/report/energy.h"

#include "base/file.h"
#include "kernels/nvml.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ZONES_MAX = 16, GPUS_MAX = 64 };

/* A counter, in parts of a joule, that begins anew at `range` (0: never). */
struct counter {
    char path[OX_PATH_BYTES], name[64];
    uint64_t last, range;
    double parts; /* counted so far */
};

struct ox_energy {
    struct counter zones[ZONES_MAX], gpus[GPUS_MAX];
    uint32_t zone_count, gpu_count;
    struct ox_nvml *nvml;
};

/* Reads a number from a file of one line. */
static bool read_number(const char *folder, const char *name, uint64_t *value) {
    char path[OX_PATH_BYTES], text[64] = "";
    FILE *const file = ox_path_join(folder, name, path) == OX_OK ? fopen(path, "re") : NULL;
    const bool read = file != NULL && fgets(text, sizeof text, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    char *end = text;
    const uint64_t found = strtoull(text, &end, 10);
    *value = read && end != text ? found : *value;
    return read && end != text;
}

/* Whether a zone is a package that is not counted yet: others are parts of one, or hold several, and one package may be
 * there by its registers and by its memory (intel-rapl-mmio). */
static bool is_new_package(const struct ox_energy *energy, struct counter *zone) {
    char path[OX_PATH_BYTES];
    FILE *const file = ox_path_join(zone->path, "name", path) == OX_OK ? fopen(path, "re") : NULL;
    bool is_new = file != NULL && fgets(zone->name, sizeof zone->name, file) != NULL &&
                  strncmp(zone->name, "package-", 8) == 0;
    if (file != NULL) {
        fclose(file);
    }
    for (uint32_t i = 0; i < energy->zone_count && is_new; i++) {
        is_new = strcmp(energy->zones[i].name, zone->name) != 0;
    }
    return is_new;
}

static void add_zones(struct ox_energy *energy, const char *powercap) {
    DIR *const folder = opendir(powercap);
    for (const struct dirent *entry; folder != NULL && energy->zone_count < ZONES_MAX &&
         (entry = readdir(folder)) != NULL;) {
        struct counter *const zone = &energy->zones[energy->zone_count];
        if (entry->d_name[0] != '.' && ox_path_join(powercap, entry->d_name, zone->path) == OX_OK &&
            is_new_package(energy, zone) && read_number(zone->path, "energy_uj", &zone->last) &&
            read_number(zone->path, "max_energy_range_uj", &zone->range)) {
            energy->zone_count++;
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

static void add_gpus(struct ox_energy *energy) {
    bool absent = false;
    if (ox_nvml_open(NULL, &energy->nvml, &absent) != OX_OK) {
        return;
    }
    const uint32_t count = ox_nvml_gpu_count(energy->nvml);
    for (uint32_t i = 0; i < count && energy->gpu_count < GPUS_MAX; i++) {
        energy->gpu_count += ox_nvml_energy(energy->nvml, i, &energy->gpus[energy->gpu_count].last);
    }
    if (energy->gpu_count < count) { /* some do not tell: the sum would be of the others alone */
        energy->gpu_count = 0;
    }
}

struct ox_energy *ox_energy_open(const char *powercap, bool gpus) {
    struct ox_energy *energy = calloc(1, sizeof *energy);
    if (energy != NULL) {
        add_zones(energy, powercap != NULL ? powercap : "/sys/class/powercap");
    }
    if (energy != NULL && gpus) {
        add_gpus(energy);
    }
    if (energy != NULL && energy->zone_count + energy->gpu_count == 0) {
        ox_energy_close(&energy);
    }
    return energy;
}

void ox_energy_close(struct ox_energy **energy) {
    if (*energy != NULL) {
        ox_nvml_close(&(*energy)->nvml);
        free(*energy);
        *energy = NULL;
    }
}

static void count_on(struct counter *counter, uint64_t now) {
    const uint64_t step = now >= counter->last ? now - counter->last
                          : counter->range > counter->last ? counter->range - counter->last + now : 0;
    counter->parts += (double)step;
    counter->last = now;
}

struct ox_energy_used ox_energy_read(struct ox_energy *energy) {
    struct ox_energy_used used = {.cpu = (double)NAN, .gpu = (double)NAN};
    double sum = 0;
    for (uint32_t i = 0; energy != NULL && i < energy->zone_count; i++) {
        uint64_t now = energy->zones[i].last;
        if (read_number(energy->zones[i].path, "energy_uj", &now)) {
            count_on(&energy->zones[i], now);
        }
        sum += energy->zones[i].parts;
        used.cpu = sum * 1e-6;
    }
    sum = 0;
    for (uint32_t i = 0; energy != NULL && i < energy->gpu_count; i++) {
        uint64_t now = energy->gpus[i].last;
        if (ox_nvml_energy(energy->nvml, i, &now)) {
            count_on(&energy->gpus[i], now);
        }
        sum += energy->gpus[i].parts;
        used.gpu = sum * 1e-3;
    }
    return used;
}
