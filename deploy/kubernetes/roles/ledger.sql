-- The ledger's database users, after its owner opened it once (which makes tables and triggers).
-- Nobody but the owner can update, delete or truncate, and nobody at all without dropping the triggers first.
-- Passwords are set where the Secrets are made: ALTER ROLE ... PASSWORD.
CREATE ROLE pilotline_runs LOGIN;
CREATE ROLE pilotline_approves LOGIN;
CREATE ROLE pilotline_reads LOGIN;
GRANT SELECT, INSERT ON ledger TO pilotline_runs, pilotline_approves;
GRANT SELECT, INSERT, UPDATE ON ledger_leases TO pilotline_runs, pilotline_approves;
GRANT SELECT ON ledger, ledger_leases TO pilotline_reads;
