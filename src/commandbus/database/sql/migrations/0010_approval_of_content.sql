-- 0010: approvals of content: digests of what was submitted, edits that wait for a decision, expiry.

-- What a governed batch consists of, as it was submitted. The salt is shown to nobody: without it, a digest
-- would tell whether a guess of a masked value is right.
create table commandbus.command_bus_content (
    batch_id        uuid primary key
        references commandbus.command_bus_batch (batch_id) on delete cascade,
    salt            uuid not null,
    digest          bytea not null,                  -- of type, domain and all children
    child_digests   bytea[] not null,                -- by sequence_no
    expires_seconds double precision null,           -- how long it, or an edit of it, may wait; null: for ever
    expires_at      timestamptz null                 -- undecided until then, it is canceled; null: never
);

-- A payload that an operator proposes for a parked child of a governed batch. The row is there while it
-- waits for a decision; the child stays in troubleshooting all the while.
create table commandbus.command_bus_edit (
    domain          text not null,
    command_id      uuid not null,
    batch_id        uuid not null,
    previous_msg_id bigint null,                     -- the edit was made from this message
    data            jsonb not null,
    changes         jsonb not null,                  -- for the audit; redacted
    reset_attempts  boolean not null,
    salt            uuid not null,
    digest          bytea not null,
    editor          text not null,
    created_at      timestamptz not null,
    expires_at      timestamptz null,                -- undecided until then, it is dropped; null: never
    constraint pk_edit primary key (command_id, domain)
);
create index ix_edit_batch on commandbus.command_bus_edit (batch_id);
create index ix_edit_created on commandbus.command_bus_edit (created_at, command_id);

-- How many edits of its children wait. Like the decision it changes seldom, and is in no index: that of
-- open batches has only those where it is not 0.
alter table commandbus.command_bus_batch
    add column edit_count int not null default 0,
    drop constraint valid_decision,
    add constraint valid_decision check (decision in ('approve', 'reject', 'expire'));
create index ix_batch_edits
    on commandbus.command_bus_batch (created_at desc, batch_id desc) where edit_count > 0;

-- Those that wait for a decision now, as create_ticket would write them. They have a week from now.
insert into commandbus.command_bus_content (
    batch_id, salt, digest, child_digests, expires_seconds, expires_at)
select d.batch_id, d.salt,
       sha256(convert_to(d.salt || chr(31) || d.batch_type || chr(31) || d.domain, 'UTF8')
              || string_agg(d.child_digest, ''::bytea order by d.sequence_no)),
       array_agg(d.child_digest order by d.sequence_no), 604800, now() + interval '7 days'
  from (select b.batch_id, b.salt, b.batch_type, b.domain, c.sequence_no,
               sha256(convert_to(
                   b.salt || chr(31) || c.domain || chr(31) || c.command_type || chr(31)
                   || c.sequence_no || chr(31) || coalesce((p.payload_json -> 'data')::text, ''),
                   'UTF8')) as child_digest
          from (select w.*, gen_random_uuid() as salt from commandbus.command_bus_batch w
                 where w.is_pending and w.requires_approval and w.decision is null offset 0) b
          join commandbus.command_bus_command c on c.batch_id = b.batch_id and c.domain = b.domain
          left join commandbus.command_bus_payload_archive p
            on p.domain = c.domain and p.command_id = c.command_id) d
 group by d.batch_id, d.salt, d.batch_type, d.domain;
