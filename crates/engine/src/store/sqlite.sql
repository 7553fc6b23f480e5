CREATE TABLE engine (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    epoch BIGINT NOT NULL
);
INSERT INTO engine (only, epoch) VALUES (1, 0);

-- `number` is the order in which sessions were accepted, and the cursor of lists.
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    key TEXT,
    state TEXT NOT NULL,
    session TEXT NOT NULL,
    seq BIGINT NOT NULL,
    ended_ms BIGINT,
    UNIQUE (tenant, key)
);
CREATE INDEX sessions_alive ON sessions (number) WHERE ended_ms IS NULL;
CREATE INDEX sessions_ended ON sessions (ended_ms) WHERE ended_ms IS NOT NULL;

CREATE TABLE events (
    session BIGINT NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
    seq BIGINT NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;

CREATE TABLE executions (
    session BIGINT NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
    exec BIGINT NOT NULL,
    execution TEXT NOT NULL,
    PRIMARY KEY (session, exec)
) WITHOUT ROWID;

CREATE TABLE transfers (
    session BIGINT NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
    transfer BIGINT NOT NULL,
    PRIMARY KEY (session, transfer)
) WITHOUT ROWID;

-- What ended sessions used, by the day of their end, counted from 1970.
CREATE TABLE ledger (
    tenant TEXT NOT NULL,
    day BIGINT NOT NULL,
    meter TEXT NOT NULL,
    PRIMARY KEY (tenant, day)
) WITHOUT ROWID;
