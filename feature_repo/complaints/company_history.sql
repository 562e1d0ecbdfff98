-- One row a company and moment at which what is known of its complaints changes: totals up to and including it.
WITH outcomes AS (
    SELECT
        "Company" AS company,
        known_timestamp,
        superseded_timestamp,
        label,
        CAST("Timely response?" = 'No' AS INTEGER) AS untimely,
        date_diff(
            'day', event_timestamp, try_strptime("Date sent to company", getvariable('time_formats'))
        ) AS days_to_send
    FROM rows
    WHERE superseded_timestamp IS NULL OR superseded_timestamp > known_timestamp
),

changes AS (  -- an outcome counts from when it is known; one that was corrected, until then
    SELECT company, known_timestamp AS moment, 1 AS one, label, untimely, days_to_send, CAST(days_to_send IS NOT NULL AS INTEGER) AS sent
    FROM outcomes
    UNION ALL
    SELECT company, superseded_timestamp, -1, -label, -untimely, -days_to_send, -CAST(days_to_send IS NOT NULL AS INTEGER)
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
        company,
        moment,
        sum(sum(one)) OVER so_far AS complaints,
        sum(sum(label)) OVER so_far AS relieved,
        sum(sum(untimely)) OVER so_far AS untimely,
        sum(coalesce(sum(days_to_send), 0)) OVER so_far AS days,
        sum(sum(sent)) OVER so_far AS sent
    FROM changes
    WHERE company NOT IN ('', 'None')
    GROUP BY company, moment
    WINDOW so_far AS (PARTITION BY company ORDER BY moment)
)

SELECT
    company,
    moment AS event_timestamp,
    moment AS created_timestamp,
    complaints AS company_complaint_count,
    (relieved + 10 * relief_rate) / (complaints + 10) AS company_relief_rate,
    (totals.untimely + 10 * untimely_rate) / (complaints + 10) AS company_untimely_rate,
    days / nullif(sent, 0) AS company_days_to_send
FROM totals
INNER JOIN overall USING (moment)
