/* What the tables in filters.c and methods.c name. */
#ifndef OX_ENGINE_JINJA_BUILTINS_H
#define OX_ENGINE_JINJA_BUILTINS_H

#include "engine/jinja/ast_internal.h"

/* ---- filters: filters_text.c, filters_sequence.c, filters_pick.c ----------------------------------------------- */

bool ox_ji_filter_attr(struct call *call);
bool ox_ji_filter_batch(struct call *call);
bool ox_ji_filter_capitalize(struct call *call);
bool ox_ji_filter_center(struct call *call);
bool ox_ji_filter_default(struct call *call);
bool ox_ji_filter_dictsort(struct call *call);
bool ox_ji_filter_escape(struct call *call);
bool ox_ji_filter_first(struct call *call);
bool ox_ji_filter_forceescape(struct call *call);
bool ox_ji_filter_format(struct call *call);
bool ox_ji_filter_groupby(struct call *call);
bool ox_ji_filter_indent(struct call *call);
bool ox_ji_filter_items(struct call *call);
bool ox_ji_filter_join(struct call *call);
bool ox_ji_filter_last(struct call *call);
bool ox_ji_filter_length(struct call *call);
bool ox_ji_filter_list(struct call *call);
bool ox_ji_filter_lower(struct call *call);
bool ox_ji_filter_map(struct call *call);
bool ox_ji_filter_max(struct call *call);
bool ox_ji_filter_min(struct call *call);
bool ox_ji_filter_reject(struct call *call);
bool ox_ji_filter_rejectattr(struct call *call);
bool ox_ji_filter_replace(struct call *call);
bool ox_ji_filter_reverse(struct call *call);
bool ox_ji_filter_safe(struct call *call);
bool ox_ji_filter_select(struct call *call);
bool ox_ji_filter_selectattr(struct call *call);
bool ox_ji_filter_slice(struct call *call);
bool ox_ji_filter_sort(struct call *call);
bool ox_ji_filter_string(struct call *call);
bool ox_ji_filter_sum(struct call *call);
bool ox_ji_filter_title(struct call *call);
bool ox_ji_filter_tojson(struct call *call);
bool ox_ji_filter_trim(struct call *call);
bool ox_ji_filter_truncate(struct call *call);
bool ox_ji_filter_unique(struct call *call);
bool ox_ji_filter_upper(struct call *call);
bool ox_ji_filter_urlencode(struct call *call);
bool ox_ji_filter_wordcount(struct call *call);

/* ---- methods of strings: methods_text.c -------------------------------------------------------------------------- */

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
