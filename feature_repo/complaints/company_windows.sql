-- One row a company and moment at which a trailing window over what is known of its complaints changes.
-- An outcome is in a window of N days from when it is known (known_timestamp) until N days later or its correction.
WITH windows AS (
    SELECT unnest([7, 30, 90, 365]) AS days
),

outcomes AS (
    SELECT
        "Company" AS company,
        "Product" AS product,
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
        company,
        days,
        moment,
        sum(sum(one)) OVER so_far AS complaints,
        sum(sum(one * label)) OVER so_far AS relieved,
        sum(sum(one * untimely)) OVER so_far AS untimely,
        sum(coalesce(sum(one * days_to_send), 0)) OVER so_far AS days_to_send,
        sum(sum(one * CAST(days_to_send IS NOT NULL AS INTEGER))) OVER so_far AS sent
    FROM changes
    WHERE company NOT IN ('', 'None')
    GROUP BY company, days, moment
    WINDOW so_far AS (PARTITION BY company, days ORDER BY moment)
),

moments AS (
    SELECT DISTINCT company, moment FROM sums
),

asked AS (
    SELECT moments.company, moments.moment, windows.days FROM moments CROSS JOIN windows
),

rates AS (
    SELECT
        asked.company,
        asked.moment,
        asked.days,
        coalesce(sums.complaints, 0) AS complaints,
        (coalesce(sums.relieved, 0) + 10 * overall.relief_rate) / (coalesce(sums.complaints, 0) + 10) AS relief_rate,
        (coalesce(sums.untimely, 0) + 10 * overall.untimely_rate) / (coalesce(sums.complaints, 0) + 10)
            AS untimely_rate,
        sums.days_to_send / nullif(sums.sent, 0) AS days_to_send
    FROM asked
    ASOF LEFT JOIN sums
        ON asked.company = sums.company AND asked.days = sums.days AND asked.moment >= sums.moment
    ASOF LEFT JOIN overall ON asked.moment >= overall.moment
),

products AS (  -- of the last 365 days: how many complaints of a product before and after each change
    SELECT
        company,
        moment,
        sum(sum(one)) OVER (PARTITION BY company, product ORDER BY moment) AS complaints,
        sum(one) AS gained
    FROM changes
    WHERE days = 365 AND company NOT IN ('', 'None')
    GROUP BY company, product, moment
),

mixes AS (  -- the number of products, and the sum of squares for their concentration (Herfindahl's index)
    SELECT
        company,
        moment,
        sum(sum(CAST(complaints > 0 AS INTEGER) - CAST(complaints > gained AS INTEGER))) OVER so_far AS products,
        sum(sum(complaints * complaints - (complaints - gained) * (complaints - gained))) OVER so_far AS squares
    FROM products
    GROUP BY company, moment
    WINDOW so_far AS (PARTITION BY company ORDER BY moment)
)

SELECT
    rates.company,
    rates.moment AS event_timestamp,
    rates.moment AS created_timestamp,
    max(complaints) FILTER (days = 7) AS company_complaints_7d,
    max(relief_rate) FILTER (days = 7) AS company_relief_rate_7d,
    max(untimely_rate) FILTER (days = 7) AS company_untimely_rate_7d,
    max(rates.days_to_send) FILTER (days = 7) AS company_days_to_send_7d,
    max(complaints) FILTER (days = 30) AS company_complaints_30d,
    max(relief_rate) FILTER (days = 30) AS company_relief_rate_30d,
    max(untimely_rate) FILTER (days = 30) AS company_untimely_rate_30d,
    max(rates.days_to_send) FILTER (days = 30) AS company_days_to_send_30d,
    max(complaints) FILTER (days = 90) AS company_complaints_90d,
    max(relief_rate) FILTER (days = 90) AS company_relief_rate_90d,
    max(untimely_rate) FILTER (days = 90) AS company_untimely_rate_90d,
    max(rates.days_to_send) FILTER (days = 90) AS company_days_to_send_90d,
    max(complaints) FILTER (days = 365) AS company_complaints_365d,
    max(relief_rate) FILTER (days = 365) AS company_relief_rate_365d,
    max(untimely_rate) FILTER (days = 365) AS company_untimely_rate_365d,
    max(rates.days_to_send) FILTER (days = 365) AS company_days_to_send_365d,
    coalesce(any_value(mixes.products), 0) AS company_products_365d,
    any_value(mixes.squares) / nullif(pow(max(complaints) FILTER (days = 365), 2), 0)
        AS company_product_concentration_365d
FROM rates
ASOF LEFT JOIN mixes ON rates.company = mixes.company AND rates.moment >= mixes.moment
GROUP BY rates.company, rates.moment
