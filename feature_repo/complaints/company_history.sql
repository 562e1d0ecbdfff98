-- One row a company and moment at which outcomes of its complaints became known: totals up to and including it.
WITH outcomes AS (
    SELECT
        "Company" AS company,
        known_timestamp AS event_timestamp,
        label,
        CAST("Timely response?" = 'No' AS INTEGER) AS untimely,
        date_diff(
            'day', event_timestamp, try_strptime("Date sent to company", getvariable('time_formats'))
        ) AS days_to_send
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
        company,
        event_timestamp,
        sum(count(*)) OVER so_far AS complaints,
        sum(sum(label)) OVER so_far AS relieved,
        sum(sum(untimely)) OVER so_far AS untimely,
        sum(coalesce(sum(days_to_send), 0)) OVER so_far AS days,
        sum(count(days_to_send)) OVER so_far AS sent
    FROM outcomes
    WHERE company NOT IN ('', 'None')
    GROUP BY company, event_timestamp
    WINDOW so_far AS (PARTITION BY company ORDER BY event_timestamp)
)

SELECT
    company,
    event_timestamp,
    event_timestamp AS created_timestamp,
    complaints AS company_complaint_count,
    (relieved + 10 * relief_rate) / (complaints + 10) AS company_relief_rate,
    (totals.untimely + 10 * untimely_rate) / (complaints + 10) AS company_untimely_rate,
    days / nullif(sent, 0) AS company_days_to_send
FROM totals
INNER JOIN overall USING (event_timestamp)
