-- Addresses that accounts signed in from, for SQLite.

-- Where an account signed in from: junk from elsewhere does not lock it out there.
CREATE TABLE account_address (
    -- Whose sign-in it was.
    account_id BIGINT NOT NULL,
    -- The address; of IPv6 its /64.
    network TEXT NOT NULL
        CHECK (length(network) <= 64),
    -- When the account last signed in from there.
    seen_at_ms BIGINT NOT NULL,
    PRIMARY KEY (account_id, network)
) WITHOUT ROWID;
