/* The methods of strings, which the table in methods.c names. */
#ifndef OX_ENGINE_JINJA_METHODS_H
#define OX_ENGINE_JINJA_METHODS_H

#include "engine/jinja/ast_internal.h"

bool ox_ji_method_affix(struct call *call);      /* startswith, endswith */
bool ox_ji_method_case(struct call *call);       /* upper, lower, title, capitalize, swapcase, casefold */
bool ox_ji_method_class(struct call *call);      /* isalpha and the like */
bool ox_ji_method_count(struct call *call);
bool ox_ji_method_expandtabs(struct call *call);
bool ox_ji_method_find(struct call *call);       /* find, rfind, index, rindex */
bool ox_ji_method_format(struct call *call);     /* format, format_map */
bool ox_ji_method_join(struct call *call);
bool ox_ji_method_pad(struct call *call);        /* center, ljust, rjust */
bool ox_ji_method_partition(struct call *call);  /* partition, rpartition */
bool ox_ji_method_remove(struct call *call);     /* removeprefix, removesuffix */
bool ox_ji_method_replace(struct call *call);
bool ox_ji_method_split(struct call *call);      /* split, rsplit */
bool ox_ji_method_splitlines(struct call *call);
bool ox_ji_method_strip(struct call *call);      /* strip, lstrip, rstrip */
bool ox_ji_method_zfill(struct call *call);

#endif
