-- One row a state and moment at which what is known of its complaints changes: totals up to and including it.
WITH outcomes AS (
    SELECT
        "State" AS state,
        known_timestamp,
        superseded_timestamp,
        label,
        CAST("Timely response?" = 'No' AS INTEGER) AS untimely
    FROM rows
    WHERE superseded_timestamp IS NULL OR superseded_timestamp > known_timestamp
),

changes AS (  -- an outcome counts from when it is known; one that was corrected, until then
    SELECT state, known_timestamp AS moment, 1 AS one, label, untimely
    FROM outcomes
    UNION ALL
    SELECT state, superseded_timestamp, -1, -label, -untimely
    FROM outcomes
    WHERE superseded_timestamp IS NOT NULL
),

overall AS (  -- rates over all complaints known by then, themselves drawn to 9 % and 4 % by 50 pseudo-complaints
    SELECT
        moment,
        (sum(sum(label)) OVER so_far + 0.09 * 50) / (sum(sum(one)) OVER so_far + 50) AS relief_rate,
        (sum(sum(untimely)) OVER so_far + 0.04 * 50) / (sum(sum(one)) OVER so_far + 50) AS untimely_rate
    FROM changes
    GROUP BY moment
    WINDOW so_far AS (ORDER BY moment)
),

totals AS (
    SELECT
        state,
        moment,
        sum(sum(one)) OVER so_far AS complaints,
        sum(sum(label)) OVER so_far AS relieved,
        sum(sum(untimely)) OVER so_far AS untimely
    FROM changes
    WHERE state NOT IN ('', 'None')
    GROUP BY state, moment
    WINDOW so_far AS (PARTITION BY state ORDER BY moment)
)

SELECT
    state,
    moment AS event_timestamp,
    moment AS created_timestamp,
    complaints AS state_complaint_count,
    (relieved + 10 * relief_rate) / (complaints + 10) AS state_relief_rate,
    (totals.untimely + 10 * untimely_rate) / (complaints + 10) AS state_untimely_rate
FROM totals
INNER JOIN overall USING (moment)
