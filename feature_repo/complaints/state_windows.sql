-- One row a state and moment at which a trailing window over what is known of its complaints changes.
-- An outcome is in a window of N days from when it is known (known_timestamp) until N days later or its correction.
WITH windows AS (
    SELECT unnest([7, 30, 90, 365]) AS days
),

outcomes AS (
    SELECT
        "State" AS state,
        known_timestamp,
        superseded_timestamp,
        label,
        CAST("Timely response?" = 'No' AS INTEGER) AS untimely
    FROM rows
    WHERE superseded_timestamp IS NULL OR superseded_timestamp > known_timestamp
),

changes AS (
    SELECT days, known_timestamp AS moment, 1 AS one, outcomes.* EXCLUDE (known_timestamp, superseded_timestamp)
    FROM outcomes CROSS JOIN windows
    UNION ALL
    SELECT
        days,
        least(superseded_timestamp, known_timestamp + to_days(days)) AS moment,
        -1 AS one,
        outcomes.* EXCLUDE (known_timestamp, superseded_timestamp)
    FROM outcomes CROSS JOIN windows
),

overall AS (  -- rates over all complaints known in the last 365 days, drawn to 9 % and 4 % by 50 pseudo-complaints
    SELECT
        moment,
        (sum(sum(one * label)) OVER so_far + 0.09 * 50) / (sum(sum(one)) OVER so_far + 50) AS relief_rate,
        (sum(sum(one * untimely)) OVER so_far + 0.04 * 50) / (sum(sum(one)) OVER so_far + 50) AS untimely_rate
    FROM changes
    WHERE days = 365
    GROUP BY moment
    WINDOW so_far AS (ORDER BY moment)
),

sums AS (
    SELECT
        state,
        days,
        moment,
        sum(sum(one)) OVER so_far AS complaints,
        sum(sum(one * label)) OVER so_far AS relieved,
        sum(sum(one * untimely)) OVER so_far AS untimely
    FROM changes
    WHERE state NOT IN ('', 'None')
    GROUP BY state, days, moment
    WINDOW so_far AS (PARTITION BY state, days ORDER BY moment)
),

moments AS (
    SELECT DISTINCT state, moment FROM sums
),

asked AS (
    SELECT moments.state, moments.moment, windows.days FROM moments CROSS JOIN windows
),

rates AS (
    SELECT
        asked.state,
        asked.moment,
        asked.days,
        coalesce(sums.complaints, 0) AS complaints,
        (coalesce(sums.relieved, 0) + 10 * overall.relief_rate) / (coalesce(sums.complaints, 0) + 10) AS relief_rate,
        (coalesce(sums.untimely, 0) + 10 * overall.untimely_rate) / (coalesce(sums.complaints, 0) + 10)
            AS untimely_rate
    FROM asked
    ASOF LEFT JOIN sums
        ON asked.state = sums.state AND asked.days = sums.days AND asked.moment >= sums.moment
    ASOF LEFT JOIN overall ON asked.moment >= overall.moment
)

SELECT
    rates.state,
    rates.moment AS event_timestamp,
    rates.moment AS created_timestamp,
    max(complaints) FILTER (days = 7) AS state_complaints_7d,
    max(relief_rate) FILTER (days = 7) AS state_relief_rate_7d,
    max(untimely_rate) FILTER (days = 7) AS state_untimely_rate_7d,
    max(complaints) FILTER (days = 30) AS state_complaints_30d,
    max(relief_rate) FILTER (days = 30) AS state_relief_rate_30d,
    max(untimely_rate) FILTER (days = 30) AS state_untimely_rate_30d,
    max(complaints) FILTER (days = 90) AS state_complaints_90d,
    max(relief_rate) FILTER (days = 90) AS state_relief_rate_90d,
    max(untimely_rate) FILTER (days = 90) AS state_untimely_rate_90d,
    max(complaints) FILTER (days = 365) AS state_complaints_365d,
    max(relief_rate) FILTER (days = 365) AS state_relief_rate_365d,
    max(untimely_rate) FILTER (days = 365) AS state_untimely_rate_365d
FROM rates
GROUP BY rates.state, rates.moment
