/* Energy by RAPL's files: packages alone, counters that go round, files that nobody may read. */
#include "engine/report/energy.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <math.h>
#include <unistd.h>

static void zone(const char *name, const char *kind, const char *used) {
    files_make_folder(test_pathf("powercap/%s", name));
    files_write_text(test_pathf("powercap/%s/name", name), kind);
    files_write_text(test_pathf("powercap/%s/energy_uj", name), used);
    files_write_text(test_pathf("powercap/%s/max_energy_range_uj", name), "262143328850\n");
}

int main(void) {
    const char *const folder = files_make_folder("powercap");
    CHECK(ox_energy_open(folder, false) == NULL && isnan(ox_energy_read(NULL).cpu));
    CHECK(ox_energy_open("/nowhere", false) == NULL);
    zone("intel-rapl:0", "package-0\n", "1000000\n");
    zone("intel-rapl:0:0", "core\n", "900000\n");
    zone("intel-rapl:1", "package-1\n", "262143000000\n");
    zone("psys", "psys\n", "5\n");
    zone("intel-rapl-mmio:0", "package-0\n", "1000000\n"); /* the same package, by another way */
    struct ox_energy *energy = ox_energy_open(folder, false);
    REQUIRE_OK(energy != NULL ? OX_OK : OX_E_IO);
    CHECK(ox_energy_read(energy).cpu == 0 && isnan(ox_energy_read(energy).gpu));
    files_write_text("powercap/intel-rapl:0/energy_uj", "3500000\n");
    files_write_text("powercap/intel-rapl-mmio:0/energy_uj", "3500000\n");
    files_write_text("powercap/intel-rapl:0:0/energy_uj", "3400000\n");
    CHECK(fabs(ox_energy_read(energy).cpu - 2.5) < 1e-9);
    files_write_text("powercap/intel-rapl:1/energy_uj", "671150\n"); /* it went round: 328850 + 671150 */
    CHECK(fabs(ox_energy_read(energy).cpu - 3.5) < 1e-9);
    CHECK(unlink(test_path("powercap/intel-rapl:0/energy_uj")) == 0);
    CHECK(unlink(test_path("powercap/intel-rapl-mmio:0/energy_uj")) == 0);
    CHECK(fabs(ox_energy_read(energy).cpu - 3.5) < 1e-9);
    ox_energy_close(&energy);
    CHECK(energy == NULL);
    return test_end();
}
