-- One row a state and moment at which outcomes of its complaints became known: totals up to and including it.
WITH outcomes AS (
    SELECT
        "State" AS state,
        known_timestamp AS event_timestamp,
        label,
        CAST("Timely response?" = 'No' AS INTEGER) AS untimely
    FROM rows
),

overall AS (  -- rates over all complaints known by then, themselves drawn to 9 % and 4 % by 50 pseudo-complaints
    SELECT
        event_timestamp,
        (sum(sum(label)) OVER so_far + 0.09 * 50) / (sum(count(*)) OVER so_far + 50) AS relief_rate,
        (sum(sum(untimely)) OVER so_far + 0.04 * 50) / (sum(count(*)) OVER so_far + 50) AS untimely_rate
    FROM outcomes
    GROUP BY event_timestamp
    WINDOW so_far AS (ORDER BY event_timestamp)
),

totals AS (
    SELECT
        state,
        event_timestamp,
        sum(count(*)) OVER so_far AS complaints,
        sum(sum(label)) OVER so_far AS relieved,
        sum(sum(untimely)) OVER so_far AS untimely
    FROM outcomes
    WHERE state NOT IN ('', 'None')
    GROUP BY state, event_timestamp
    WINDOW so_far AS (PARTITION BY state ORDER BY event_timestamp)
)

SELECT
    state,
    event_timestamp,
    event_timestamp AS created_timestamp,
    complaints AS state_complaint_count,
    (relieved + 10 * relief_rate) / (complaints + 10) AS state_relief_rate,
    (totals.untimely + 10 * untimely_rate) / (complaints + 10) AS state_untimely_rate
FROM totals
INNER JOIN overall USING (event_timestamp)
