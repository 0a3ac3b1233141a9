-- Addresses that accounts signed in from, for MySQL and MariaDB.

-- Where an account signed in from: junk from elsewhere does not lock it out there.
CREATE TABLE IF NOT EXISTS account_address (
    -- Whose sign-in it was.
    account_id BIGINT NOT NULL,
    -- The address; of IPv6 its /64.
    network VARCHAR(64) NOT NULL,
    -- When the account last signed in from there.
    seen_at_ms BIGINT NOT NULL,
    PRIMARY KEY (account_id, network)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
