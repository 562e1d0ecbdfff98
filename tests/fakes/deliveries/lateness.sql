SELECT
    carrier AS carrier_code,
    known_timestamp AS event_timestamp,
    known_timestamp AS created_timestamp,
    sum(sum(label)) OVER so_far / sum(count(*)) OVER so_far AS late_share,
    sum(count(*)) OVER so_far AS parcels
FROM rows
GROUP BY carrier, known_timestamp
WINDOW so_far AS (PARTITION BY carrier ORDER BY known_timestamp)
