/* When a run goes over to the held order and back: a rule of the last eight steps alone. */
#include "engine/step/order.h"

#include "tests/kit/test.h"

#include <stdio.h>

/* Notes steps, 'c' clipped and '.' not, and compares the order of the step after each: 'h' held, 's' speculative. */
static void check(const char *steps, const char *orders) {
    struct ox_order order = ox_order_at_start();
    CHECK(!order.holds);
    for (int i = 0; steps[i] != '\0'; i++) {
        ox_order_note(&order, steps[i] == 'c');
        if (order.holds != (orders[i] == 'h')) {
            printf("%s: after step %d not as in %s\n", steps, i + 1, orders);
            test_failure_count++;
            return;
        }
    }
}

int main(void) {
    check("cccccccc", "hhhhhhhh"); /* a run whose first norm is clipped is held at once */
    check("........", "ssssssss");
    check("...c....", "ssshhhhs"); /* within the first steps half are taken for clipped */
    check("....c...", "ssssssss");
    check("c.......", "hhhhhhhs"); /* back when one of the last eight was clipped */
    check("cccccccc.......", "hhhhhhhhhhhhhhs");
    check("........cccc....", "ssssssssssssssss"); /* half are not most */
    check("........ccccc.......", "sssssssssssshhhhhhhs");
    check("........c...c...c...c...", "ssssssssssssssssssssssss"); /* now and then */
    check("........cc.cc.cc.cc.cc.", "sssssssssssssshhhhhhhhh");
    return test_end();
}
