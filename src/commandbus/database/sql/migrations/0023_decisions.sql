-- 0023: what a bulk operation was for, when it begins, and how far it was when it went on; what is known of a
-- failure group beside its counters; who looked at what waits for a decision.

alter table commandbus.command_bus_bulk_operation
    add column reason text null,                     -- why, in the operator's words
    add column item_limit int null,                  -- only this many of what matched, the oldest
    add column starts_at timestamptz null,           -- no item before this time; null: at once
    add column resumed_at timestamptz null,          -- when it last went on, and how many items had their
    add column resumed_from int not null default 0,  -- outcome by then: the rate is measured from there
    add column stopped_by text null,                 -- who stopped it last, and when
    add column stopped_at timestamptz null;
update commandbus.command_bus_bulk_operation o set reason = o.arguments ->> 'reason'
 where o.arguments ? 'reason';
-- The operations on one failure group, newest first. None of these columns ever changes.
create index ix_bulk_group on commandbus.command_bus_bulk_operation
    (domain, (filter ->> 'group'), created_at desc, operation_id desc) where filter ? 'group';

-- None of these is in an index, so that every change of a counter stays a HOT update.
alter table commandbus.command_bus_failure_group
    add column note text null,                       -- the newest; all of them are in the audit
    add column note_by text null,
    add column note_at timestamptz null,
    add column assignee text null,                   -- who looks after it
    add column emptied_at timestamptz null,          -- when its last parked command left it
    add column back_at timestamptz null,             -- when it was seen again after that
    add column back_after interval null,             -- how long it had been empty by then
    add column back_count int not null default 0;    -- how often it came back

-- Who, of those that may decide, has seen what of a governed batch: a row for each user, the newest look.
create table commandbus.command_bus_look (
    batch_id uuid not null references commandbus.command_bus_batch (batch_id) on delete cascade,
    user_id  text not null,
    digest   text null,                              -- of what was seen
    first_at timestamptz not null,
    last_at  timestamptz not null,
    constraint pk_look primary key (batch_id, user_id)
);
