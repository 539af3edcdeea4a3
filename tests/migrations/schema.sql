-- Made by `make schema`. Do not edit: a test compares it with a fresh install.

table commandbus.command_bus_audit
    audit_id bigint not null default nextval('commandbus.command_bus_audit_audit_id_seq'::regclass)
    domain text not null
    command_id uuid not null
    event_type text not null
    ts timestamp with time zone not null default now()
    details_json jsonb
    batch_id uuid
    actor text
    with autovacuum_vacuum_insert_scale_factor=0.1
    constraint command_bus_audit_pkey PRIMARY KEY (audit_id)
    CREATE INDEX ix_command_bus_audit_cmdid_ts ON commandbus.command_bus_audit USING btree (command_id, ts)
    CREATE UNIQUE INDEX command_bus_audit_pkey ON commandbus.command_bus_audit USING btree (audit_id)
    CREATE TRIGGER command_bus_audit_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON commandbus.command_bus_audit FOR EACH STATEMENT EXECUTE FUNCTION commandbus.refuse_audit_change()

table commandbus.command_bus_batch
    batch_id uuid not null
    domain character varying(255) not null
    name character varying(255)
    custom_data jsonb
    status character varying(50) not null default 'PENDING'::character varying
    total_count integer not null default 0
    completed_count integer not null default 0
    failed_count integer not null default 0
    canceled_count integer not null default 0
    in_troubleshooting_count integer not null default 0
    created_at timestamp with time zone not null default now()
    started_at timestamp with time zone
    completed_at timestamp with time zone
    batch_type text
    created_by text
    reason text
    request_id uuid
    request_digest bytea
    total_sealed boolean not null default true
    on_complete jsonb
    with fillfactor=50
    constraint command_bus_batch_pkey PRIMARY KEY (batch_id)
    constraint uq_batch_domain_batch_id UNIQUE (domain, batch_id)
    constraint valid_counts CHECK ((LEAST(total_count, completed_count, failed_count, canceled_count, in_troubleshooting_count) >= 0))
    constraint valid_status CHECK (((status)::text = ANY ((ARRAY['PENDING'::character varying, 'IN_PROGRESS'::character varying, 'COMPLETED'::character varying, 'COMPLETED_WITH_FAILURES'::character varying])::text[])))
    CREATE INDEX idx_batch_created_at ON commandbus.command_bus_batch USING btree (created_at DESC)
    CREATE INDEX idx_batch_domain ON commandbus.command_bus_batch USING btree (domain)
    CREATE INDEX idx_batch_status ON commandbus.command_bus_batch USING btree (status)
    CREATE UNIQUE INDEX command_bus_batch_pkey ON commandbus.command_bus_batch USING btree (batch_id)
    CREATE UNIQUE INDEX uq_batch_domain_batch_id ON commandbus.command_bus_batch USING btree (domain, batch_id)

table commandbus.command_bus_command
    domain text not null
    queue_name text not null
    msg_id bigint
    command_id uuid not null
    command_type text not null
    status text not null
    attempts integer not null default 0
    max_attempts integer not null
    lease_expires_at timestamp with time zone
    last_error_type text
    last_error_code text
    last_error_msg text
    created_at timestamp with time zone not null default now()
    updated_at timestamp with time zone not null default now()
    reply_queue text not null
    correlation_id uuid not null
    batch_id uuid
    lease_epoch bigint not null default 0
    leased_by text
    lapses integer not null default 0
    started_alone boolean not null default false
    is_globally_unique boolean not null default false
    sequence_no integer
    attempt_count integer not null default 1
    last_attempt_at timestamp with time zone
    dispatch_status text not null default 'queued'::text
    queue_attempt_count integer not null default 0
    last_queue_error text
    queued_at timestamp with time zone
    with autovacuum_analyze_scale_factor=0.05
    with autovacuum_vacuum_insert_scale_factor=0.1
    with autovacuum_vacuum_scale_factor=0.05
    with fillfactor=50
    constraint fk_command_batch FOREIGN KEY (domain, batch_id) REFERENCES commandbus.command_bus_batch(domain, batch_id)
    constraint valid_command_status CHECK ((status = ANY (ARRAY['PENDING'::text, 'IN_PROGRESS'::text, 'COMPLETED'::text, 'CANCELED'::text, 'FAILED'::text, 'IN_TROUBLESHOOTING_QUEUE'::text])))
    constraint valid_dispatch_status CHECK ((dispatch_status = ANY (ARRAY['awaiting_approval'::text, 'scheduled'::text, 'pending_queue'::text, 'queued'::text, 'pending_retry'::text, 'failed'::text])))
    CREATE INDEX idx_command_batch_id ON commandbus.command_bus_command USING btree (batch_id, sequence_no) WHERE (batch_id IS NOT NULL)
    CREATE INDEX ix_command_bus_command_created ON commandbus.command_bus_command USING btree (created_at)
    CREATE INDEX ix_command_bus_command_updated ON commandbus.command_bus_command USING brin (updated_at)
    CREATE UNIQUE INDEX uq_command_bus_command_domain_cmdid ON commandbus.command_bus_command USING btree (domain, command_id)
    CREATE UNIQUE INDEX uq_command_bus_command_global ON commandbus.command_bus_command USING btree (command_id) WHERE is_globally_unique

table commandbus.command_bus_migration
    version integer not null
    name text not null
    checksum text not null
    is_breaking boolean not null default false
    applied_at timestamp with time zone not null default now()
    constraint command_bus_migration_pkey PRIMARY KEY (version)
    CREATE UNIQUE INDEX command_bus_migration_pkey ON commandbus.command_bus_migration USING btree (version)

table commandbus.command_bus_payload_archive
    domain text not null
    command_id uuid not null
    payload_json jsonb not null
    archived_at timestamp with time zone not null default now()
    constraint command_bus_payload_archive_pkey PRIMARY KEY (domain, command_id)
    CREATE UNIQUE INDEX command_bus_payload_archive_pkey ON commandbus.command_bus_payload_archive USING btree (domain, command_id)

table commandbus.command_bus_reply_inbox
    domain text not null
    command_id uuid not null
    reply jsonb not null
    published_at timestamp with time zone not null default now()
    constraint command_bus_reply_inbox_pkey PRIMARY KEY (domain, command_id)
    CREATE UNIQUE INDEX command_bus_reply_inbox_pkey ON commandbus.command_bus_reply_inbox USING btree (domain, command_id)

table commandbus.command_bus_setting
    name text not null
    value text not null
    updated_at timestamp with time zone not null default now()
    constraint command_bus_setting_pkey PRIMARY KEY (name)
    CREATE UNIQUE INDEX command_bus_setting_pkey ON commandbus.command_bus_setting USING btree (name)

table commandbus.command_bus_troubleshooting
    domain text not null
    command_id uuid not null
    command_type text not null
    reason text not null
    parked_at timestamp with time zone not null
    constraint pk_troubleshooting PRIMARY KEY (domain, command_id)
    constraint valid_reason CHECK ((reason = ANY (ARRAY['PERMANENT'::text, 'EXHAUSTED'::text])))
    CREATE INDEX ix_troubleshooting_parked ON commandbus.command_bus_troubleshooting USING btree (domain, parked_at, command_id)
    CREATE INDEX ix_troubleshooting_type ON commandbus.command_bus_troubleshooting USING btree (domain, command_type, parked_at)
    CREATE UNIQUE INDEX pk_troubleshooting ON commandbus.command_bus_troubleshooting USING btree (domain, command_id)

table commandbus.command_bus_worker
    worker_id text not null
    domain text not null
    is_idle boolean not null default false
    concurrency integer not null
    in_flight integer not null default 0
    started_at timestamp with time zone not null default now()
    heartbeat_at timestamp with time zone not null default now()
    with autovacuum_vacuum_scale_factor=0
    with autovacuum_vacuum_threshold=50
    with fillfactor=50
    constraint command_bus_worker_pkey PRIMARY KEY (worker_id)
    CREATE UNIQUE INDEX command_bus_worker_pkey ON commandbus.command_bus_worker USING btree (worker_id)

relation S command_bus_audit_audit_id_seq

function commandbus.cancel_commands(p_domain text, p_command_ids uuid[], p_reason text, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    plpgsql, volatile, body 9a0c8aed5e0c9583bfb5e9753592fc1a
function commandbus.change_setting(p_name text, p_value text) returns void
    plpgsql, volatile, body a9540136f9c3ca08dc18c755a036204a
function commandbus.check_domain(p_domain text) returns void
    plpgsql, immutable, body 37c81b124150f446e62a2ac19fe3682e
function commandbus.close_batches(p_batch_ids uuid[], p_now timestamp with time zone) returns void
    plpgsql, volatile, body 86b08be1d9f06626fbd20e665adcb381
function commandbus.command_payload(p_domain text, p_command_id uuid) returns text
    plpgsql, stable, body 688f97e3f5990f2605dde73804eedb86
function commandbus.complete_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 92fd33ae180de7507c483bb1e79be4bd
function commandbus.confirm_start(p_domain text, p_command_id uuid, p_lease_epoch bigint) returns boolean
    plpgsql, volatile, body 38ad5e989f0797fc75a1a17a4191ee42
function commandbus.ensure_domain(p_domain text) returns void
    plpgsql, volatile, body 02a4b06eaea9ba2d9e068add872db5ed
function commandbus.ensure_queue(p_queue text) returns void
    plpgsql, volatile, body 1b81ba64d824c0efb4e420707a0d19d1
function commandbus.extend_leases(p_domain text, p_items jsonb, p_vt integer) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 95920f3d135cc9d86934298cd59c9cda
function commandbus.fail_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 703e8886f1d9c465cb53b1f35648b2f3
function commandbus.failure_details(p_attempt integer, p_class text, p_code text, p_message text, p_details jsonb, p_delay double precision) returns jsonb
    sql, immutable, body ebdef94b6d4bac5ea42a504d7e733d66
function commandbus.find_domains(p_command_id uuid) returns SETOF text
    sql, stable, body f697a4bf57b146b3c76c38f82130069d
function commandbus.is_sent_anywhere(p_command_id uuid) returns boolean
    sql, stable, body be88fccf467e09292a3671d6d57b6e04
function commandbus.iso8601(p_ts timestamp with time zone) returns text
    sql, immutable, body 71d3d1a94dbdb7c22853b052dde5e544
function commandbus.join_batch(p_domain text, p_batch_id uuid, p_count integer) returns void
    plpgsql, volatile, body d964df021a4668f4a96dd938897f42ce
function commandbus.keep_payloads(p_domain text, p_msg_ids bigint[]) returns void
    plpgsql, volatile, body e7d6652691a47ddd780e8beb7fac09b7
function commandbus.list_troubleshooting(p_domain text, p_command_type text, p_limit integer, p_offset integer) returns TABLE(domain text, command_id uuid, command_type text, reason text, parked_at timestamp with time zone, attempts integer, max_attempts integer, last_error_type text, last_error_code text, last_error_msg text, correlation_id uuid, reply_queue text, batch_id uuid, created_at timestamp with time zone, data text)
    plpgsql, stable, body 2978857442a623772deba12bdbe79a0b
function commandbus.lock_messages(p_queue text, p_msg_ids bigint[]) returns void
    plpgsql, volatile, body 57b980130ed12fbb15884ebbdab271e0
function commandbus.move_batch_counters(p_batch_ids uuid[], p_from text, p_to text) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 84275818f0e5f1c586cf6d4f85a49071
function commandbus.offer_commands(p_domain text, p_commands jsonb, p_batch_id uuid DEFAULT NULL::uuid, p_actor text DEFAULT NULL::text) returns uuid[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 7f392fab72e26c63dbba01f338bd1e30
function commandbus.operator_cancel(p_domain text, p_command_ids uuid[], p_reason text, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    plpgsql, volatile, body 9c71abfa7bd3f3cfb9513b5b37517a08
function commandbus.operator_complete(p_domain text, p_command_ids uuid[], p_result jsonb DEFAULT NULL::jsonb, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    plpgsql, volatile, body f9d91441d0607fc548b0d30b2db4b627
function commandbus.operator_retry(p_domain text, p_command_ids uuid[], p_actor text DEFAULT NULL::text, p_reset_attempts boolean DEFAULT true, p_is_strict boolean DEFAULT true) returns SETOF uuid
    plpgsql, volatile, body 052bab821a57ac6e4d28bcdc959a6131
function commandbus.park_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body d96789bd1f00ebbd2a8e3906dbf6bf75
function commandbus.physical_queue(p_queue text) returns text
    sql, immutable, body 1b1a649014f3bd98f42a151a6a5e1106
function commandbus.publish_replies(p_domain text, p_queues text[], p_replies jsonb[]) returns void
    plpgsql, volatile, body 209a48931f63290bcc2da4af1cdfeba8
function commandbus.query_commands(p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_limit integer, p_offset integer) returns SETOF commandbus.command_bus_command
    plpgsql, stable, set plan_cache_mode=force_custom_plan, body ad77f680ec032387938f09f2d167e32f
function commandbus.queue_exists(p_queue text) returns boolean
    sql, stable, body 0f42882c02f9413a9ee14a7c9f1a18f1
function commandbus.read_replies(p_queue text, p_vt integer, p_quantity integer) returns TABLE(msg_id bigint, body text)
    plpgsql, volatile, body e656d09ca109c05a59d929ac686b3ee9
function commandbus.receive_commands(p_domain text, p_vt integer, p_quantity integer, p_worker text, p_limits jsonb DEFAULT '{}'::jsonb, p_mark_in_progress boolean DEFAULT true) returns TABLE(command_id uuid, command_type text, msg_id bigint, lease_epoch bigint, attempt integer, max_attempts integer, is_suspect boolean, correlation_id uuid, reply_queue text, batch_id uuid, created_at timestamp with time zone, data text)
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 7a909f8d2065e95f3327ec08b57386f2
function commandbus.refuse_audit_change() returns trigger
    plpgsql, volatile, body b6f7b2b80628b92f0dfab92e91940564
function commandbus.refuse_unmoved(p_domain text, p_command_ids uuid[], p_moved uuid[], p_verb text, p_wanted text) returns void
    plpgsql, volatile, body fc0d7fe9f503360b5977f14e08f03adb
function commandbus.reject_stale(p_domain text, p_items jsonb, p_moved uuid[]) returns SETOF uuid
    plpgsql, volatile, body c0ff9b5a5cb079d32071eb90065dfedf
function commandbus.release_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 24a68e90c3ba6549edf315ac7e5e3757
function commandbus.reply_body(p_domain text, p_command_id uuid, p_correlation_id uuid, p_command_type text, p_outcome text, p_completed_at text, p_data jsonb, p_error jsonb) returns jsonb
    sql, immutable, body 07d0362bfc794328e9edfe76d1f1d34a
function commandbus.resolve_parked(p_domain text, p_command_ids uuid[], p_status text, p_outcome text, p_event text, p_data jsonb, p_error jsonb, p_details jsonb, p_actor text) returns uuid[]
    plpgsql, volatile, body ed8d43eaac40e2f1f57a6f45ada0efa5
function commandbus.retry_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body fd4dd003a23ffb37ea07a5db4d90a12c
function commandbus.send_command(p_domain text, p_command_type text, p_command_id uuid, p_data jsonb DEFAULT '{}'::jsonb, p_reply_to text DEFAULT NULL::text, p_correlation_id uuid DEFAULT NULL::uuid) returns uuid
    plpgsql, volatile, body 761cc7fb46f2725d66005f6eb97dc013
function commandbus.send_commands(p_domain text, p_commands jsonb, p_batch_id uuid DEFAULT NULL::uuid, p_actor text DEFAULT NULL::text) returns integer
    plpgsql, volatile, body 4604d2c46dc5aae3b4eff9eb55cee45c
function commandbus.setting(p_name text) returns text
    sql, stable, body 6b5ae6ea4d2b689cf6c3c498a70e2bec
function commandbus.settle_commands(p_domain text, p_outcomes jsonb) returns SETOF uuid
    plpgsql, volatile, body daab3aea13fe08d84297098a1bf6cac8
function commandbus.take_inbox_reply(p_domain text, p_command_id uuid) returns text
    sql, volatile, body 09a5d0801c6dc8ffe44edefbf2ca08a8
function commandbus.turn_away(p_domain text, p_msg_ids bigint[], p_command_ids uuid[], p_worker text, p_limits jsonb, p_now timestamp with time zone) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 9390c2b507f563c8cf68ffc747002b3d
function commandbus.wake_workers(p_domain text) returns void
    plpgsql, volatile, body 22f98cea303d8cc1ef31760b28cc53ec
function commandbus.worker_gone(p_worker text) returns void
    sql, volatile, body 6382e9a369b6b12decadd32a942dd632
function commandbus.worker_heartbeat(p_worker text, p_domain text, p_is_idle boolean, p_concurrency integer, p_in_flight integer) returns void
    plpgsql, volatile, body 950d52ad6c44a16a85f91a3c5bae237a

migration 1 = initial
setting command_id_scope = domain
setting payload_archive = off
