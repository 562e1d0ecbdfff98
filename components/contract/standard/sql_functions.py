"""Functions and operators that SQL in a contract may use: they compute from their arguments and touch nothing else.

Left out beside what reads or writes outside: what differs from call to call (random, now, one-argument age), what makes
much out of little (repeat, range, lpad, format), and what tells about the machine or the session (settings, variables,
versions, the time zone).
"""

from __future__ import annotations

from components.contract.standard.yaml_file import words

OPERATORS = "+ - * / // % ^ ** & | << >> || ~ @ ! ~~ !~~ ~~* !~~* ~~~ ^@ && @> <@"
AGGREGATES = (
    "count count_star count_if countif sum avg mean min max product stddev stddev_pop stddev_samp variance "
    "var_pop var_samp skewness kurtosis kurtosis_pop entropy corr covar_pop covar_samp regr_slope "
    "regr_intercept regr_r2 regr_count median mode mad quantile quantile_cont quantile_disc bool_and bool_or "
    "bit_and bit_or bit_xor arg_max arg_min max_by min_by list array_agg string_agg group_concat histogram "
    "fsum favg kahan_sum"
)
WINDOWS = "row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value"
NUMBERS = (
    "abs add subtract multiply divide mod ceil ceiling floor round round_even trunc sign sqrt cbrt exp ln "
    "log log2 log10 pow power greatest least isnan isinf isfinite sin cos tan asin acos atan atan2 degrees "
    "radians pi factorial gcd lcm even signbit xor fmod fdiv"
)
TEXTS = (
    "length len char_length character_length strlen length_grapheme bit_length lower lcase upper ucase trim "
    "ltrim rtrim left right substring substr replace reverse concat concat_ws contains starts_with prefix "
    "ends_with suffix instr strpos position split split_part string_split str_split string_split_regex "
    "regexp_split_to_array regexp_matches regexp_full_match regexp_extract regexp_extract_all regexp_replace "
    "like_escape not_like_escape ilike_escape not_ilike_escape ascii ord unicode chr strip_accents "
    "nfc_normalize translate levenshtein editdist3 damerau_levenshtein jaccard jaro_similarity "
    "jaro_winkler_similarity hamming mismatches md5 sha1 sha256 json_valid json_extract json_extract_string "
    "json_array_length json_type"
)
TIMES = (
    "year month day hour minute second millisecond microsecond quarter week weekofyear yearweek dayofweek "
    "isodow weekday dayofmonth dayofyear dayname monthname isoyear era decade century millennium epoch "
    "epoch_ms epoch_us epoch_ns date_part datepart date_diff datediff date_sub datesub date_trunc datetrunc "
    "date_add last_day make_date make_time make_timestamp strftime strptime try_strptime time_bucket "
    "to_years to_months to_weeks to_days to_hours to_minutes to_seconds to_milliseconds to_microseconds "
    "julian"
)
OTHERS = (
    "coalesce ifnull nullif if case list_value list_contains list_has list_count list_sum list_avg list_min "
    "list_max list_length list_distinct list_unique list_sort list_filter list_transform list_apply "
    "list_element list_extract list_any_value array_length array_contains array_extract struct_pack "
    "struct_extract row unnest typeof hash try_cast"
)
ALLOWED = words(" ".join((OPERATORS, AGGREGATES, WINDOWS, NUMBERS, TEXTS, TIMES, OTHERS)))
SESSION_VALUES = words(
    "current_date current_time current_timestamp localtime localtimestamp today now user current_user session_user "
    "current_role current_schema current_catalog current_database transaction_timestamp"
)
