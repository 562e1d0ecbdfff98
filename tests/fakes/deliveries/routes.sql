-- A parcel is known when it is sent; a row never counts itself.
SELECT
    "from" AS origin,
    "to" AS destination,
    event_timestamp + INTERVAL 1 MICROSECOND AS event_timestamp,
    event_timestamp + INTERVAL 1 MICROSECOND AS created_timestamp,
    sum(count(*)) OVER (PARTITION BY "from", "to" ORDER BY event_timestamp) AS route_uses
FROM rows
GROUP BY "from", "to", rows.event_timestamp
