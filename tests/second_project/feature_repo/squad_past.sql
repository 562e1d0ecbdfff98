-- Per team and moment at which an outcome became known: how many, and the smoothed share that was escalated.
SELECT
    squad,
    event_timestamp,
    event_timestamp AS created_timestamp,
    tickets AS squad_tickets,
    (escalated + 2) / (tickets + 10) AS squad_escalation_rate
FROM (
    SELECT
        "team" AS squad,
        known_timestamp AS event_timestamp,
        sum(count(*)) OVER so_far AS tickets,
        sum(sum(label)) OVER so_far AS escalated
    FROM rows
    GROUP BY "team", known_timestamp
    WINDOW so_far AS (PARTITION BY "team" ORDER BY known_timestamp)
)
