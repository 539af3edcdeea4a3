-- Made by `make schema`. Do not edit: a test compares it with a fresh install.

table commandbus.command_bus_api_token
    token_id text not null
    user_id text not null
    scopes text[] not null
    domains text[]
    label text
    secret_hash bytea not null
    created_by text
    created_at timestamp with time zone not null default now()
    expires_at timestamp with time zone
    revoked_at timestamp with time zone
    last_used_at timestamp with time zone
    replaced_by text
    with fillfactor=50
    constraint command_bus_api_token_pkey PRIMARY KEY (token_id)
    constraint valid_token_domains CHECK ((cardinality(domains) > 0))
    constraint valid_token_id CHECK ((token_id ~ '^[0-9a-f]{32}$'::text))
    constraint valid_token_scopes CHECK (((cardinality(scopes) > 0) AND (scopes <@ ARRAY['read'::text, 'read-payload'::text, 'send'::text, 'submit'::text, 'operate'::text, 'approve'::text, 'admin'::text, 'bypass-governance'::text])))
    CREATE INDEX ix_api_token_created ON commandbus.command_bus_api_token USING btree (created_at, token_id)
    CREATE UNIQUE INDEX command_bus_api_token_pkey ON commandbus.command_bus_api_token USING btree (token_id)

table commandbus.command_bus_archive_part
    archive text not null
    first_id bigint not null
    below_id bigint not null
    waits_for text[] not null
    noted_at timestamp with time zone not null default now()
    look_after timestamp with time zone not null default '-infinity'::timestamp with time zone
    constraint pk_archive_part PRIMARY KEY (archive, first_id)
    CREATE UNIQUE INDEX pk_archive_part ON commandbus.command_bus_archive_part USING btree (archive, first_id)

table commandbus.command_bus_audit
    audit_id bigint not null default nextval('commandbus.command_bus_audit_audit_id_seq'::regclass)
    domain text not null
    command_id uuid not null
    event_type text not null
    ts timestamp with time zone not null default now()
    details_json jsonb
    batch_id uuid
    actor text
    constraint command_bus_audit_pkey PRIMARY KEY (audit_id)
    CREATE INDEX ix_audit_people ON ONLY commandbus.command_bus_audit USING btree (audit_id) WHERE ((actor IS NOT NULL) AND (event_type <> ALL (ARRAY['SENT'::text, 'RECEIVED'::text, 'AUDIT_PRUNED'::text])))
    CREATE INDEX ix_command_bus_audit_cmdid_ts ON ONLY commandbus.command_bus_audit USING btree (command_id, ts)
    CREATE UNIQUE INDEX command_bus_audit_pkey ON ONLY commandbus.command_bus_audit USING btree (audit_id)
    CREATE TRIGGER command_bus_audit_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON commandbus.command_bus_audit FOR EACH STATEMENT EXECUTE FUNCTION commandbus.refuse_audit_change()

table commandbus.command_bus_audit_first
    audit_id bigint not null default nextval('commandbus.command_bus_audit_audit_id_seq'::regclass)
    domain text not null
    command_id uuid not null
    event_type text not null
    ts timestamp with time zone not null default now()
    details_json jsonb
    batch_id uuid
    actor text
    with autovacuum_vacuum_insert_scale_factor=0.1
    constraint command_bus_audit_first_pkey PRIMARY KEY (audit_id)
    CREATE INDEX ix_audit_first_people ON commandbus.command_bus_audit_first USING btree (audit_id) WHERE ((actor IS NOT NULL) AND (event_type <> ALL (ARRAY['SENT'::text, 'RECEIVED'::text, 'AUDIT_PRUNED'::text])))
    CREATE INDEX ix_command_bus_audit_first_cmdid_ts ON commandbus.command_bus_audit_first USING btree (command_id, ts)
    CREATE UNIQUE INDEX command_bus_audit_first_pkey ON commandbus.command_bus_audit_first USING btree (audit_id)
    CREATE TRIGGER command_bus_audit_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON commandbus.command_bus_audit_first FOR EACH STATEMENT EXECUTE FUNCTION commandbus.refuse_audit_change()

table commandbus.command_bus_audit_horizon
    is_one boolean not null default true
    safe_to bigint
    candidate_id bigint
    waits_for text[] not null default '{}'::text[]
    noted_at timestamp with time zone
    constraint command_bus_audit_horizon_is_one_check CHECK (is_one)
    constraint command_bus_audit_horizon_pkey PRIMARY KEY (is_one)
    CREATE UNIQUE INDEX command_bus_audit_horizon_pkey ON commandbus.command_bus_audit_horizon USING btree (is_one)

table commandbus.command_bus_audit_part
    first_id bigint not null
    below_id bigint not null
    row_count bigint not null
    events jsonb not null
    newest_ts timestamp with time zone
    counted_at timestamp with time zone not null default now()
    look_after timestamp with time zone not null default '-infinity'::timestamp with time zone
    constraint command_bus_audit_part_pkey PRIMARY KEY (first_id)
    CREATE UNIQUE INDEX command_bus_audit_part_pkey ON commandbus.command_bus_audit_part USING btree (first_id)

table commandbus.command_bus_audit_removal
    removal_number bigint not null
    domain text not null
    ids int8multirange not null
    row_count integer not null
    sealed_to bigint not null
    rows_digest bytea not null
    before timestamp with time zone not null
    keep_seconds bigint
    actor text
    removed_at timestamp with time zone not null default clock_timestamp()
    sealed_by bigint
    constraint command_bus_audit_removal_pkey PRIMARY KEY (removal_number)
    CREATE INDEX ix_audit_removal_ids ON commandbus.command_bus_audit_removal USING gist (ids)
    CREATE INDEX ix_audit_removal_sealed ON commandbus.command_bus_audit_removal USING btree (sealed_by)
    CREATE UNIQUE INDEX command_bus_audit_removal_pkey ON commandbus.command_bus_audit_removal USING btree (removal_number)
    CREATE TRIGGER command_bus_audit_removal_append_only BEFORE DELETE OR UPDATE ON commandbus.command_bus_audit_removal FOR EACH ROW EXECUTE FUNCTION commandbus.refuse_seal_change()
    CREATE TRIGGER command_bus_audit_removal_no_truncate BEFORE TRUNCATE ON commandbus.command_bus_audit_removal FOR EACH STATEMENT EXECUTE FUNCTION commandbus.refuse_seal_change()

table commandbus.command_bus_audit_seal
    seal_number bigint not null
    first_id bigint not null
    last_id bigint not null
    row_count integer not null
    oldest_ts timestamp with time zone
    entries bytea not null
    entries_digest bytea not null
    removals bytea not null
    previous bytea not null
    sealed_at timestamp with time zone not null
    key_id text not null
    digest bytea not null
    signature bytea not null
    constraint command_bus_audit_seal_pkey PRIMARY KEY (seal_number)
    CREATE UNIQUE INDEX command_bus_audit_seal_pkey ON commandbus.command_bus_audit_seal USING btree (seal_number)
    CREATE TRIGGER command_bus_audit_seal_append_only BEFORE DELETE OR UPDATE ON commandbus.command_bus_audit_seal FOR EACH ROW EXECUTE FUNCTION commandbus.refuse_seal_change()
    CREATE TRIGGER command_bus_audit_seal_no_truncate BEFORE TRUNCATE ON commandbus.command_bus_audit_seal FOR EACH STATEMENT EXECUTE FUNCTION commandbus.refuse_seal_change()

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
    close_count integer not null default 0
    notifies boolean not null default false
    pruning_since timestamp with time zone
    updated_at timestamp with time zone not null default now()
    requires_approval boolean not null default false
    decided_by text
    decided_at timestamp with time zone
    decision text
    decision_reason text
    is_pending boolean not null default ((batch_type IS NOT NULL) AND (total_count > (((completed_count + failed_count) + canceled_count) + in_troubleshooting_count)))
    edit_count integer not null default 0
    ticket_class text default 
CASE
    WHEN (batch_type IS NULL) THEN NULL::text
    WHEN (total_count > (((completed_count + failed_count) + canceled_count) + in_troubleshooting_count)) THEN 'OPEN'::text
    WHEN (completed_count = total_count) THEN 'COMPLETED'::text
    WHEN (canceled_count = total_count) THEN 'CANCELED'::text
    WHEN (completed_count > 0) THEN 'PARTIAL_SUCCESS'::text
    ELSE 'FAILED'::text
END
    moved_to bigint
    history_since timestamp with time zone
    with fillfactor=50
    constraint command_bus_batch_pkey PRIMARY KEY (batch_id)
    constraint governed_has_owner CHECK (((batch_type IS NULL) OR (created_by IS NOT NULL)))
    constraint uq_batch_domain_batch_id UNIQUE (domain, batch_id)
    constraint valid_counts CHECK ((LEAST(total_count, completed_count, failed_count, canceled_count, in_troubleshooting_count) >= 0))
    constraint valid_decision CHECK ((decision = ANY (ARRAY['approve'::text, 'reject'::text, 'expire'::text])))
    constraint valid_status CHECK (((status)::text = ANY ((ARRAY['PENDING'::character varying, 'IN_PROGRESS'::character varying, 'COMPLETED'::character varying, 'COMPLETED_WITH_FAILURES'::character varying])::text[])))
    constraint whole_decision CHECK (((decision IS NULL) = (decided_at IS NULL)))
    CREATE INDEX idx_batch_created_at ON commandbus.command_bus_batch USING btree (created_at DESC)
    CREATE INDEX idx_batch_domain ON commandbus.command_bus_batch USING btree (domain)
    CREATE INDEX idx_batch_status ON commandbus.command_bus_batch USING btree (status)
    CREATE INDEX ix_batch_edits ON commandbus.command_bus_batch USING btree (created_at DESC, batch_id DESC) WHERE (edit_count > 0)
    CREATE INDEX ix_batch_governed_completed ON commandbus.command_bus_batch USING btree (completed_at) WHERE (batch_type IS NOT NULL)
    CREATE INDEX ix_batch_moved ON commandbus.command_bus_batch USING btree (domain, moved_to) WHERE (moved_to IS NOT NULL)
    CREATE INDEX ix_batch_pending ON commandbus.command_bus_batch USING btree (created_by) WHERE is_pending
    CREATE INDEX ix_batch_pruning ON commandbus.command_bus_batch USING btree (domain, batch_id) WHERE (pruning_since IS NOT NULL)
    CREATE INDEX ix_batch_ticket ON commandbus.command_bus_batch USING btree (domain, batch_type, ticket_class, created_at DESC, batch_id DESC) WHERE (batch_type IS NOT NULL)
    CREATE INDEX ix_batch_ticket_owner ON commandbus.command_bus_batch USING btree (created_by, domain, batch_type, ticket_class, created_at DESC, batch_id DESC) WHERE (batch_type IS NOT NULL)
    CREATE INDEX ix_batch_ungoverned ON commandbus.command_bus_batch USING btree (domain, created_at DESC, batch_id DESC) WHERE (batch_type IS NULL)
    CREATE INDEX ix_batch_unmoved ON commandbus.command_bus_batch USING btree (created_at, batch_id) WHERE (moved_to IS NULL)
    CREATE UNIQUE INDEX command_bus_batch_pkey ON commandbus.command_bus_batch USING btree (batch_id)
    CREATE UNIQUE INDEX uq_batch_domain_batch_id ON commandbus.command_bus_batch USING btree (domain, batch_id)
    CREATE UNIQUE INDEX uq_batch_request ON commandbus.command_bus_batch USING btree (created_by, batch_type, request_id) WHERE (request_id IS NOT NULL)

table commandbus.command_bus_bulk_item
    operation_id uuid not null
    item_no integer not null
    command_id uuid not null
    parked_at timestamp with time zone not null
    outcome text
    detail text
    acted_at timestamp with time zone
    constraint command_bus_bulk_item_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES commandbus.command_bus_bulk_operation(operation_id) ON DELETE CASCADE
    constraint pk_bulk_item PRIMARY KEY (operation_id, item_no)
    constraint valid_bulk_outcome CHECK ((outcome = ANY (ARRAY['done'::text, 'skipped'::text, 'failed'::text])))
    CREATE INDEX ix_bulk_item_undone ON commandbus.command_bus_bulk_item USING btree (operation_id, outcome, item_no) WHERE (outcome = ANY (ARRAY['skipped'::text, 'failed'::text]))
    CREATE UNIQUE INDEX pk_bulk_item ON commandbus.command_bus_bulk_item USING btree (operation_id, item_no)

table commandbus.command_bus_bulk_operation
    operation_id uuid not null
    domain text not null
    verb text not null
    filter jsonb not null
    arguments jsonb not null
    digest bytea not null
    rate double precision
    actor text
    status text not null
    total integer not null
    done integer not null default 0
    skipped integer not null default 0
    failed integer not null default 0
    executor text
    heartbeat_at timestamp with time zone
    next_due_at timestamp with time zone not null default now()
    created_at timestamp with time zone not null default now()
    started_at timestamp with time zone
    finished_at timestamp with time zone
    is_governed boolean not null default false
    reason text
    item_limit integer
    starts_at timestamp with time zone
    resumed_at timestamp with time zone
    resumed_from integer not null default 0
    stopped_by text
    stopped_at timestamp with time zone
    with fillfactor=50
    constraint command_bus_bulk_operation_pkey PRIMARY KEY (operation_id)
    constraint valid_bulk_counts CHECK ((((done + skipped) + failed) <= total))
    constraint valid_bulk_status CHECK ((status = ANY (ARRAY['running'::text, 'stopped'::text, 'finished'::text])))
    constraint valid_bulk_verb CHECK ((verb = ANY (ARRAY['retry'::text, 'cancel'::text, 'complete'::text])))
    CREATE INDEX ix_bulk_created ON commandbus.command_bus_bulk_operation USING btree (created_at, operation_id)
    CREATE INDEX ix_bulk_group ON commandbus.command_bus_bulk_operation USING btree (domain, ((filter ->> 'group'::text)), created_at DESC, operation_id DESC) WHERE (filter ? 'group'::text)
    CREATE INDEX ix_bulk_running ON commandbus.command_bus_bulk_operation USING btree (domain, created_at) WHERE (status = 'running'::text)
    CREATE UNIQUE INDEX command_bus_bulk_operation_pkey ON commandbus.command_bus_bulk_operation USING btree (operation_id)

table commandbus.command_bus_check_run
    run_id bigint not null
    kind text not null
    domain text
    is_fix boolean not null default false
    actor text
    reason text
    started_at timestamp with time zone not null
    touched_at timestamp with time zone not null
    finished_at timestamp with time zone
    error text
    result jsonb
    constraint command_bus_check_run_pkey PRIMARY KEY (run_id)
    constraint valid_check_kind CHECK ((kind = ANY (ARRAY['doctor'::text, 'audit'::text])))
    CREATE UNIQUE INDEX command_bus_check_run_pkey ON commandbus.command_bus_check_run USING btree (run_id)

table commandbus.command_bus_chore
    name text not null
    started_at timestamp with time zone not null
    every interval
    ended_at timestamp with time zone
    failed boolean not null default false
    told jsonb not null default '{}'::jsonb
    constraint command_bus_chore_pkey PRIMARY KEY (name)
    CREATE UNIQUE INDEX command_bus_chore_pkey ON commandbus.command_bus_chore USING btree (name)

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
    lease_epoch bigint not null default 0
    leased_by text
    lapses integer not null default 0
    started_alone boolean not null default false
    last_attempt_at timestamp with time zone
    reply_queue text not null
    correlation_id uuid not null
    batch_id uuid
    is_globally_unique boolean not null default false
    sequence_no integer
    attempt_count integer not null default 1
    dispatch_status text not null default 'queued'::text
    queue_attempt_count integer not null default 0
    last_queue_error text
    queued_at timestamp with time zone
    deliver_at timestamp with time zone
    expires_at timestamp with time zone
    priority smallint
    ordering_key text
    key_seq bigint
    limit_key text
    snoozes integer
    cancel_requested_at timestamp with time zone
    cancel_requested_by text
    cancel_reason text
    with autovacuum_analyze_scale_factor=0.05
    with autovacuum_vacuum_insert_scale_factor=0.1
    with autovacuum_vacuum_scale_factor=0.05
    with fillfactor=40
    constraint fk_command_batch FOREIGN KEY (domain, batch_id) REFERENCES commandbus.command_bus_batch(domain, batch_id)
    constraint valid_command_status CHECK ((status = ANY (ARRAY['PENDING'::text, 'IN_PROGRESS'::text, 'COMPLETED'::text, 'CANCELED'::text, 'FAILED'::text, 'IN_TROUBLESHOOTING_QUEUE'::text])))
    constraint valid_dispatch_status CHECK ((dispatch_status = ANY (ARRAY['awaiting_approval'::text, 'scheduled'::text, 'pending_queue'::text, 'queued'::text, 'pending_retry'::text, 'failed'::text])))
    constraint valid_priority CHECK (((priority >= '-2'::integer) AND (priority <= 2)))
    CREATE INDEX idx_command_batch_id ON commandbus.command_bus_command USING btree (batch_id, sequence_no) WHERE (batch_id IS NOT NULL)
    CREATE INDEX idx_command_dispatch ON commandbus.command_bus_command USING btree (batch_id, dispatch_status, sequence_no) WHERE (dispatch_status <> 'queued'::text)
    CREATE INDEX idx_command_pending_retry ON commandbus.command_bus_command USING btree (domain, created_at) WHERE (dispatch_status = ANY (ARRAY['pending_retry'::text, 'pending_queue'::text]))
    CREATE INDEX ix_command_bus_command_correlation ON commandbus.command_bus_command USING btree (correlation_id)
    CREATE INDEX ix_command_bus_command_created ON commandbus.command_bus_command USING btree (created_at)
    CREATE INDEX ix_command_bus_command_updated ON commandbus.command_bus_command USING brin (updated_at)
    CREATE UNIQUE INDEX uq_command_bus_command_domain_cmdid ON commandbus.command_bus_command USING btree (domain, command_id)
    CREATE UNIQUE INDEX uq_command_bus_command_global ON commandbus.command_bus_command USING btree (command_id) WHERE is_globally_unique

table commandbus.command_bus_console_code
    secret_hash bytea not null
    token_id text not null
    expires_at timestamp with time zone not null
    constraint command_bus_console_code_pkey PRIMARY KEY (secret_hash)
    CREATE UNIQUE INDEX command_bus_console_code_pkey ON commandbus.command_bus_console_code USING btree (secret_hash)

table commandbus.command_bus_console_session
    session_id uuid not null
    secret_hash bytea not null
    token_id text not null
    user_id text not null
    address text
    agent text
    created_at timestamp with time zone not null default now()
    proved_at timestamp with time zone not null default now()
    last_seen_at timestamp with time zone not null default now()
    expires_at timestamp with time zone not null
    ended_at timestamp with time zone
    with fillfactor=50
    constraint command_bus_console_session_pkey PRIMARY KEY (session_id)
    constraint valid_session_hash CHECK ((octet_length(secret_hash) = 32))
    CREATE INDEX ix_console_session_expires ON commandbus.command_bus_console_session USING btree (expires_at)
    CREATE INDEX ix_console_session_user ON commandbus.command_bus_console_session USING btree (user_id, created_at)
    CREATE UNIQUE INDEX command_bus_console_session_pkey ON commandbus.command_bus_console_session USING btree (session_id)
    CREATE UNIQUE INDEX ix_console_session_secret ON commandbus.command_bus_console_session USING btree (secret_hash)

table commandbus.command_bus_content
    batch_id uuid not null
    salt uuid not null
    digest bytea not null
    child_digests bytea[] not null
    expires_seconds double precision
    expires_at timestamp with time zone
    constraint command_bus_content_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES commandbus.command_bus_batch(batch_id) ON DELETE CASCADE
    constraint command_bus_content_pkey PRIMARY KEY (batch_id)
    CREATE UNIQUE INDEX command_bus_content_pkey ON commandbus.command_bus_content USING btree (batch_id)

table commandbus.command_bus_creation_metric
    batch_id uuid not null
    pattern text not null
    batch_size integer not null
    db_insert_ms double precision not null
    queue_send_ms double precision not null
    status_update_ms double precision not null
    total_ms double precision not null
    retry_needed boolean not null
    created_at timestamp with time zone not null default now()
    constraint command_bus_creation_metric_pkey PRIMARY KEY (batch_id)
    CREATE INDEX ix_creation_metric_created ON commandbus.command_bus_creation_metric USING btree (created_at DESC)
    CREATE UNIQUE INDEX command_bus_creation_metric_pkey ON commandbus.command_bus_creation_metric USING btree (batch_id)

table commandbus.command_bus_dispatch
    batch_id uuid not null
    domain text not null
    pattern text not null
    dispatch_rate double precision
    queue text
    heartbeat_at timestamp with time zone not null default now()
    ended_at timestamp with time zone
    constraint command_bus_dispatch_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES commandbus.command_bus_batch(batch_id)
    constraint command_bus_dispatch_pkey PRIMARY KEY (batch_id)
    constraint valid_pattern CHECK ((pattern = ANY (ARRAY['two_phase'::text, 'optimistic'::text])))
    CREATE INDEX ix_dispatch_domain ON commandbus.command_bus_dispatch USING btree (domain)
    CREATE UNIQUE INDEX command_bus_dispatch_pkey ON commandbus.command_bus_dispatch USING btree (batch_id)

table commandbus.command_bus_edit
    domain text not null
    command_id uuid not null
    batch_id uuid not null
    previous_msg_id bigint
    data jsonb not null
    changes jsonb not null
    reset_attempts boolean not null
    salt uuid not null
    digest bytea not null
    editor text not null
    created_at timestamp with time zone not null
    expires_at timestamp with time zone
    constraint pk_edit PRIMARY KEY (command_id, domain)
    CREATE INDEX ix_edit_batch ON commandbus.command_bus_edit USING btree (batch_id)
    CREATE INDEX ix_edit_created ON commandbus.command_bus_edit USING btree (created_at, command_id)
    CREATE UNIQUE INDEX pk_edit ON commandbus.command_bus_edit USING btree (command_id, domain)

table commandbus.command_bus_expiry
    domain text not null
    command_id uuid not null
    look_at timestamp with time zone not null
    constraint pk_expiry PRIMARY KEY (domain, command_id)
    CREATE INDEX ix_expiry_look_at ON commandbus.command_bus_expiry USING btree (look_at)
    CREATE UNIQUE INDEX pk_expiry ON commandbus.command_bus_expiry USING btree (domain, command_id)

table commandbus.command_bus_failure_group
    domain text not null
    fingerprint text not null
    command_type text not null
    error_class text
    error_code text
    message text not null
    sample_message text
    sample_command_id uuid not null
    parked_count integer not null
    total_seen bigint not null
    first_seen timestamp with time zone not null
    last_seen timestamp with time zone not null
    is_governed boolean not null default false
    note text
    note_by text
    note_at timestamp with time zone
    assignee text
    emptied_at timestamp with time zone
    back_at timestamp with time zone
    back_after interval
    back_count integer not null default 0
    with autovacuum_vacuum_scale_factor=0
    with autovacuum_vacuum_threshold=50
    with fillfactor=50
    constraint pk_failure_group PRIMARY KEY (domain, fingerprint)
    constraint valid_parked_count CHECK ((parked_count >= 0))
    CREATE UNIQUE INDEX pk_failure_group ON commandbus.command_bus_failure_group USING btree (domain, fingerprint)

table commandbus.command_bus_flow
    domain text not null
    paused_at timestamp with time zone
    paused_until timestamp with time zone
    paused_by text
    pause_reason text
    has_levels boolean not null default false
    level_seconds double precision not null default 60
    has_rules boolean not null default false
    has_keys boolean not null default false
    on_park text not null default 'block'::text
    updated_at timestamp with time zone not null default now()
    with fillfactor=50
    constraint command_bus_flow_pkey PRIMARY KEY (domain)
    constraint valid_level_seconds CHECK ((level_seconds >= (0)::double precision))
    constraint valid_on_park CHECK ((on_park = ANY (ARRAY['block'::text, 'skip'::text])))
    CREATE UNIQUE INDEX command_bus_flow_pkey ON commandbus.command_bus_flow USING btree (domain)

table commandbus.command_bus_flow_rule
    domain text not null
    command_type text not null
    by_key boolean not null
    max_running integer
    rate double precision
    per_seconds double precision
    burst double precision
    paused_at timestamp with time zone
    paused_until timestamp with time zone
    paused_by text
    pause_reason text
    updated_at timestamp with time zone not null default clock_timestamp()
    updated_by text
    constraint pk_flow_rule PRIMARY KEY (domain, command_type, by_key)
    constraint valid_key_rule CHECK (((NOT by_key) OR ((command_type <> ''::text) AND (paused_at IS NULL))))
    constraint valid_max_running CHECK ((max_running >= 1))
    constraint valid_rate CHECK (((num_nonnulls(rate, per_seconds, burst) = ANY (ARRAY[0, 3])) AND (rate > (0)::double precision) AND (per_seconds > (0)::double precision) AND (burst >= (1)::double precision)))
    CREATE UNIQUE INDEX pk_flow_rule ON commandbus.command_bus_flow_rule USING btree (domain, command_type, by_key)

table commandbus.command_bus_gate
    domain text not null
    gate text not null
    tokens double precision
    refilled_at timestamp with time zone
    ready_at timestamp with time zone
    with autovacuum_vacuum_scale_factor=0.01
    with autovacuum_vacuum_threshold=1000
    with fillfactor=50
    constraint pk_gate PRIMARY KEY (domain, gate)
    CREATE INDEX ix_gate_ready ON commandbus.command_bus_gate USING btree (domain, ready_at) WHERE (ready_at IS NOT NULL)
    CREATE UNIQUE INDEX pk_gate ON commandbus.command_bus_gate USING btree (domain, gate)

table commandbus.command_bus_governed_type
    domain text not null
    command_type text not null
    batch_type text not null
    path text
    requires_approval boolean not null
    registered_at timestamp with time zone not null default now()
    constraint command_bus_governed_type_pkey PRIMARY KEY (domain, command_type, batch_type)
    CREATE UNIQUE INDEX command_bus_governed_type_pkey ON commandbus.command_bus_governed_type USING btree (domain, command_type, batch_type)

table commandbus.command_bus_group_sample
    domain text not null
    fingerprint text not null
    hour timestamp with time zone not null
    seen bigint not null
    total bigint not null
    with fillfactor=50
    constraint pk_group_sample PRIMARY KEY (domain, fingerprint, hour)
    CREATE INDEX ix_group_sample_hour ON commandbus.command_bus_group_sample USING btree (hour)
    CREATE UNIQUE INDEX pk_group_sample ON commandbus.command_bus_group_sample USING btree (domain, fingerprint, hour)

table commandbus.command_bus_history
    history_no bigint not null
    moved_at timestamp with time zone not null
    sent_by text
    digest bytea
    domain text not null
    queue_name text not null
    msg_id bigint
    command_id uuid not null
    command_type text not null
    status text not null
    attempts integer not null
    max_attempts integer not null
    lease_expires_at timestamp with time zone
    last_error_type text
    last_error_code text
    last_error_msg text
    created_at timestamp with time zone not null
    updated_at timestamp with time zone not null
    lease_epoch bigint not null
    leased_by text
    lapses integer not null
    started_alone boolean not null
    last_attempt_at timestamp with time zone
    reply_queue text not null
    correlation_id uuid not null
    batch_id uuid
    is_globally_unique boolean not null
    sequence_no integer
    attempt_count integer not null
    dispatch_status text not null
    queue_attempt_count integer not null
    last_queue_error text
    queued_at timestamp with time zone
    deliver_at timestamp with time zone
    expires_at timestamp with time zone
    priority smallint
    ordering_key text
    key_seq bigint
    limit_key text
    snoozes integer
    cancel_requested_at timestamp with time zone
    cancel_requested_by text
    cancel_reason text
    constraint pk_history PRIMARY KEY (domain, history_no)
    CREATE INDEX ix_history_batch ON ONLY commandbus.command_bus_history USING btree (batch_id, sequence_no) WHERE (batch_id IS NOT NULL)
    CREATE INDEX ix_history_command ON ONLY commandbus.command_bus_history USING btree (command_id, domain)
    CREATE INDEX ix_history_correlation ON ONLY commandbus.command_bus_history USING btree (correlation_id)
    CREATE INDEX ix_history_created ON ONLY commandbus.command_bus_history USING btree (created_at)
    CREATE UNIQUE INDEX pk_history ON ONLY commandbus.command_bus_history USING btree (domain, history_no)

table commandbus.command_bus_history_domain
    domain text not null
    last_no bigint not null default 0
    newest_id uuid
    has_other_ids boolean not null default false
    constraint command_bus_history_domain_pkey PRIMARY KEY (domain)
    CREATE UNIQUE INDEX command_bus_history_domain_pkey ON commandbus.command_bus_history_domain USING btree (domain)

table commandbus.command_bus_key
    domain text not null
    ordering_key text not null
    head uuid
    blocked_by uuid
    blocked_at timestamp with time zone
    with autovacuum_vacuum_cost_delay=0
    with autovacuum_vacuum_scale_factor=0.01
    with autovacuum_vacuum_threshold=1000
    with fillfactor=50
    constraint pk_key PRIMARY KEY (domain, ordering_key)
    constraint valid_block CHECK (((blocked_by IS NULL) = (blocked_at IS NULL)))
    CREATE INDEX ix_key_blocked ON commandbus.command_bus_key USING btree (domain, blocked_at) WHERE (blocked_by IS NOT NULL)
    CREATE UNIQUE INDEX pk_key ON commandbus.command_bus_key USING btree (domain, ordering_key)

table commandbus.command_bus_key_due
    due_id bigint not null
    domain text not null
    ordering_key text not null
    with autovacuum_vacuum_cost_delay=0
    with autovacuum_vacuum_scale_factor=0.01
    with autovacuum_vacuum_threshold=1000
    constraint pk_key_due PRIMARY KEY (domain, due_id)
    CREATE UNIQUE INDEX pk_key_due ON commandbus.command_bus_key_due USING btree (domain, due_id)

table commandbus.command_bus_load
    batch_id uuid not null
    domain text not null
    source text not null
    row_format jsonb not null
    start_mode text not null
    status text not null default 'loading'::text
    checkpoint_size integer
    rows_committed integer not null default 0
    checkpoints_done integer not null default 0
    rows_dispatched integer not null default 0
    insert_ms double precision not null default 0
    last_error text
    created_at timestamp with time zone not null default now()
    updated_at timestamp with time zone not null default now()
    delimiter text
    options jsonb
    rows_total integer
    with fillfactor=50
    constraint command_bus_load_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES commandbus.command_bus_batch(batch_id) ON DELETE CASCADE
    constraint command_bus_load_pkey PRIMARY KEY (batch_id)
    constraint valid_load_status CHECK ((status = ANY (ARRAY['loading'::text, 'sealed'::text, 'failed'::text, 'canceled'::text])))
    constraint valid_start_mode CHECK ((start_mode = ANY (ARRAY['sealed'::text, 'as_it_loads'::text])))
    CREATE INDEX ix_load_created ON commandbus.command_bus_load USING btree (created_at, batch_id)
    CREATE INDEX ix_load_open ON commandbus.command_bus_load USING btree (created_at, batch_id) WHERE ((status = ANY (ARRAY['loading'::text, 'failed'::text])) OR ((status = 'sealed'::text) AND (rows_dispatched < rows_committed)))
    CREATE UNIQUE INDEX command_bus_load_pkey ON commandbus.command_bus_load USING btree (batch_id)

table commandbus.command_bus_load_checkpoint
    batch_id uuid not null
    checkpoint_no integer not null
    first_row integer not null
    row_count integer not null
    digest bytea not null
    committed_at timestamp with time zone not null default now()
    constraint command_bus_load_checkpoint_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES commandbus.command_bus_load(batch_id) ON DELETE CASCADE
    constraint pk_load_checkpoint PRIMARY KEY (batch_id, checkpoint_no)
    constraint valid_row_count CHECK ((row_count > 0))
    CREATE UNIQUE INDEX pk_load_checkpoint ON commandbus.command_bus_load_checkpoint USING btree (batch_id, checkpoint_no)

table commandbus.command_bus_look
    batch_id uuid not null
    user_id text not null
    digest text
    first_at timestamp with time zone not null
    last_at timestamp with time zone not null
    constraint command_bus_look_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES commandbus.command_bus_batch(batch_id) ON DELETE CASCADE
    constraint pk_look PRIMARY KEY (batch_id, user_id)
    CREATE UNIQUE INDEX pk_look ON commandbus.command_bus_look USING btree (batch_id, user_id)

table commandbus.command_bus_migration
    version integer not null
    name text not null
    checksum text not null
    is_breaking boolean not null default false
    applied_at timestamp with time zone not null default now()
    constraint command_bus_migration_pkey PRIMARY KEY (version)
    CREATE UNIQUE INDEX command_bus_migration_pkey ON commandbus.command_bus_migration USING btree (version)

table commandbus.command_bus_move
    move_id uuid not null
    domain text not null
    is_leaving boolean not null
    from_shard text not null
    to_shard text not null
    phase text not null default 'copying'::text
    is_frozen boolean not null default false
    counts jsonb not null default '{}'::jsonb
    started_at timestamp with time zone not null default clock_timestamp()
    changed_at timestamp with time zone not null default clock_timestamp()
    finished_at timestamp with time zone
    constraint command_bus_move_pkey PRIMARY KEY (move_id)
    constraint valid_move_phase CHECK ((phase = ANY (ARRAY['copying'::text, 'closing'::text, 'verified'::text, 'switched'::text, 'finished'::text, 'canceled'::text])))
    constraint whole_move_end CHECK (((finished_at IS NULL) = (phase <> ALL (ARRAY['finished'::text, 'canceled'::text]))))
    CREATE UNIQUE INDEX command_bus_move_pkey ON commandbus.command_bus_move USING btree (move_id)
    CREATE UNIQUE INDEX uq_move_open ON commandbus.command_bus_move USING btree (domain) WHERE (finished_at IS NULL)

table commandbus.command_bus_moved_audit
    move_id uuid not null
    chunk_no integer not null
    after_id bigint not null
    upto_id bigint not null
    old_ids int8multirange not null
    new_ids int8multirange not null
    row_count integer not null
    digest bytea not null
    constraint command_bus_moved_audit_move_id_fkey FOREIGN KEY (move_id) REFERENCES commandbus.command_bus_move(move_id)
    constraint pk_moved_audit PRIMARY KEY (move_id, chunk_no)
    CREATE UNIQUE INDEX pk_moved_audit ON commandbus.command_bus_moved_audit USING btree (move_id, chunk_no)

table commandbus.command_bus_payload_archive
    domain text not null
    command_id uuid not null
    payload_json jsonb not null
    archived_at timestamp with time zone not null default now()
    constraint command_bus_payload_archive_pkey PRIMARY KEY (domain, command_id)
    CREATE UNIQUE INDEX command_bus_payload_archive_pkey ON commandbus.command_bus_payload_archive USING btree (domain, command_id)

table commandbus.command_bus_progress
    domain text not null
    command_id uuid not null
    lease_epoch bigint not null
    fraction double precision not null
    message text
    at timestamp with time zone not null
    with fillfactor=50
    constraint pk_progress PRIMARY KEY (command_id, domain)
    CREATE UNIQUE INDEX pk_progress ON commandbus.command_bus_progress USING btree (command_id, domain)

table commandbus.command_bus_reply_inbox
    domain text not null
    command_id uuid not null
    reply jsonb not null
    published_at timestamp with time zone not null default now()
    constraint command_bus_reply_inbox_pkey PRIMARY KEY (domain, command_id)
    CREATE UNIQUE INDEX command_bus_reply_inbox_pkey ON commandbus.command_bus_reply_inbox USING btree (domain, command_id)

table commandbus.command_bus_retention
    domain text not null
    kind text not null
    keep interval
    updated_by text
    updated_at timestamp with time zone not null default now()
    constraint pk_retention PRIMARY KEY (domain, kind)
    constraint valid_kind CHECK ((kind = ANY (ARRAY['audit'::text, 'archives'::text, 'replies'::text, 'commands'::text, 'history'::text])))
    CREATE UNIQUE INDEX pk_retention ON commandbus.command_bus_retention USING btree (domain, kind)

table commandbus.command_bus_sample
    seconds smallint not null
    at timestamp with time zone not null
    domain text not null
    queued bigint not null
    removed bigint not null
    completed bigint not null
    failed bigint not null
    parked bigint not null
    retried bigint not null
    with fillfactor=70
    constraint pk_sample PRIMARY KEY (seconds, at, domain)
    constraint valid_seconds CHECK ((seconds = ANY (ARRAY[10, 60])))
    CREATE UNIQUE INDEX pk_sample ON commandbus.command_bus_sample USING btree (seconds, at, domain)

table commandbus.command_bus_schedule
    schedule_id uuid not null
    domain text not null
    name text not null
    command_type text not null
    data jsonb not null
    reply_to text not null
    max_attempts integer not null
    expires_in_seconds double precision
    priority integer
    ordering_key text
    jitter_seconds double precision not null
    cron text
    timezone text
    every_seconds double precision
    at timestamp with time zone
    counted_from timestamp with time zone not null
    missed text not null
    missed_cap integer not null
    overlap text not null
    next_tick_at timestamp with time zone
    look_at timestamp with time zone
    last_tick_at timestamp with time zone
    last_command_id uuid
    last_trigger_id uuid
    last_error text
    version bigint not null default 1
    created_by text
    created_at timestamp with time zone not null
    updated_by text
    updated_at timestamp with time zone not null
    paused_at timestamp with time zone
    paused_by text
    pause_reason text
    on_behalf jsonb
    meta jsonb
    constraint ck_schedule_missed CHECK ((missed = ANY (ARRAY['once'::text, 'skip'::text, 'all'::text])))
    constraint ck_schedule_overlap CHECK ((overlap = ANY (ARRAY['skip'::text, 'allow'::text])))
    constraint ck_schedule_time CHECK (((num_nonnulls(cron, every_seconds, at) = 1) AND ((cron IS NULL) = (timezone IS NULL))))
    constraint command_bus_schedule_pkey PRIMARY KEY (schedule_id)
    constraint uq_schedule_name UNIQUE (domain, name)
    CREATE INDEX ix_schedule_due ON commandbus.command_bus_schedule USING btree (look_at) WHERE (paused_at IS NULL)
    CREATE UNIQUE INDEX command_bus_schedule_pkey ON commandbus.command_bus_schedule USING btree (schedule_id)
    CREATE UNIQUE INDEX uq_schedule_name ON commandbus.command_bus_schedule USING btree (domain, name)

table commandbus.command_bus_secret_key
    domain text not null
    command_type text not null
    key text not null
    constraint pk_secret_key PRIMARY KEY (domain, command_type, key)
    CREATE UNIQUE INDEX pk_secret_key ON commandbus.command_bus_secret_key USING btree (domain, command_type, key)

table commandbus.command_bus_sender
    domain text not null
    command_id uuid not null
    sent_by text not null
    digest bytea not null
    constraint command_bus_sender_pkey PRIMARY KEY (command_id, domain)
    CREATE UNIQUE INDEX command_bus_sender_pkey ON commandbus.command_bus_sender USING btree (command_id, domain)

table commandbus.command_bus_setting
    name text not null
    value text not null
    updated_at timestamp with time zone not null default now()
    constraint command_bus_setting_pkey PRIMARY KEY (name)
    CREATE UNIQUE INDEX command_bus_setting_pkey ON commandbus.command_bus_setting USING btree (name)

table commandbus.command_bus_shard
    is_this boolean not null default true
    shard text not null
    version integer not null
    default_shard text
    domains jsonb not null
    adopted_at timestamp with time zone not null default now()
    constraint command_bus_shard_pkey PRIMARY KEY (is_this)
    constraint one_shard CHECK (is_this)
    constraint valid_map_version CHECK ((version > 0))
    CREATE UNIQUE INDEX command_bus_shard_pkey ON commandbus.command_bus_shard USING btree (is_this)

table commandbus.command_bus_slot
    domain text not null
    gate text not null
    command_id uuid not null
    with autovacuum_vacuum_scale_factor=0.01
    with autovacuum_vacuum_threshold=1000
    constraint pk_slot PRIMARY KEY (domain, gate, command_id)
    CREATE INDEX ix_slot_command ON commandbus.command_bus_slot USING btree (domain, command_id)
    CREATE UNIQUE INDEX pk_slot ON commandbus.command_bus_slot USING btree (domain, gate, command_id)

table commandbus.command_bus_tally
    domain text not null
    since timestamp with time zone not null
    queued bigint not null default 0
    removed bigint not null default 0
    completed bigint not null default 0
    failed bigint not null default 0
    parked bigint not null default 0
    retried bigint not null default 0
    gone_completed bigint not null default 0
    gone_failed bigint not null default 0
    gone_parked bigint not null default 0
    gone_retried bigint not null default 0
    with autovacuum_vacuum_scale_factor=0
    with autovacuum_vacuum_threshold=50
    with fillfactor=50
    constraint command_bus_tally_pkey PRIMARY KEY (domain)
    CREATE UNIQUE INDEX command_bus_tally_pkey ON commandbus.command_bus_tally USING btree (domain)

table commandbus.command_bus_troubleshooting
    domain text not null
    command_id uuid not null
    command_type text not null
    reason text not null
    parked_at timestamp with time zone not null
    fingerprint text not null
    owner text
    constraint pk_troubleshooting PRIMARY KEY (command_id, domain)
    constraint valid_reason CHECK ((reason = ANY (ARRAY['PERMANENT'::text, 'EXHAUSTED'::text])))
    CREATE INDEX ix_troubleshooting_group ON commandbus.command_bus_troubleshooting USING btree (domain, fingerprint, parked_at, command_id)
    CREATE INDEX ix_troubleshooting_newest ON commandbus.command_bus_troubleshooting USING btree (parked_at, command_id)
    CREATE INDEX ix_troubleshooting_owner ON commandbus.command_bus_troubleshooting USING btree (domain, owner, parked_at, command_id) WHERE (owner IS NOT NULL)
    CREATE INDEX ix_troubleshooting_parked ON commandbus.command_bus_troubleshooting USING btree (domain, parked_at, command_id)
    CREATE INDEX ix_troubleshooting_type ON commandbus.command_bus_troubleshooting USING btree (domain, command_type, parked_at)
    CREATE UNIQUE INDEX pk_troubleshooting ON commandbus.command_bus_troubleshooting USING btree (command_id, domain)

table commandbus.command_bus_unconfirmed
    domain text not null
    command_id uuid not null
    queue text
    handed_at timestamp with time zone not null default clock_timestamp()
    constraint pk_unconfirmed PRIMARY KEY (command_id, domain)
    CREATE INDEX ix_unconfirmed_handed ON commandbus.command_bus_unconfirmed USING btree (domain, handed_at)
    CREATE UNIQUE INDEX pk_unconfirmed ON commandbus.command_bus_unconfirmed USING btree (command_id, domain)

table commandbus.command_bus_unique
    domain text not null
    unique_key text not null
    command_id uuid
    holds_while text not null default 'until'::text
    holds_until timestamp with time zone
    first_at timestamp with time zone not null
    look_at timestamp with time zone not null
    with fillfactor=70
    constraint pk_unique PRIMARY KEY (domain, unique_key)
    constraint valid_holds_while CHECK ((holds_while = ANY (ARRAY['waiting'::text, 'open'::text, 'until'::text])))
    CREATE INDEX ix_unique_look_at ON commandbus.command_bus_unique USING btree (look_at)
    CREATE UNIQUE INDEX pk_unique ON commandbus.command_bus_unique USING btree (domain, unique_key)

table commandbus.command_bus_waiting
    domain text not null
    gate text not null
    seq bigint not null
    msg_id bigint not null
    command_id uuid not null
    since timestamp with time zone not null default clock_timestamp()
    constraint pk_waiting PRIMARY KEY (domain, gate, seq, msg_id)
    CREATE UNIQUE INDEX pk_waiting ON commandbus.command_bus_waiting USING btree (domain, gate, seq, msg_id)
    CREATE UNIQUE INDEX uq_waiting_command ON commandbus.command_bus_waiting USING btree (domain, command_id)

table commandbus.command_bus_worker
    worker_id text not null
    domain text not null
    is_idle boolean not null default false
    concurrency integer not null
    in_flight integer not null default 0
    started_at timestamp with time zone not null default now()
    heartbeat_at timestamp with time zone not null default now()
    stuck integer not null default 0
    version text
    stuck_types text[] not null default '{}'::text[]
    completed bigint not null default 0
    failed bigint not null default 0
    parked bigint not null default 0
    retried bigint not null default 0
    with autovacuum_vacuum_scale_factor=0
    with autovacuum_vacuum_threshold=50
    with fillfactor=50
    constraint command_bus_worker_pkey PRIMARY KEY (worker_id)
    CREATE UNIQUE INDEX command_bus_worker_pkey ON commandbus.command_bus_worker USING btree (worker_id)

table commandbus.command_bus_worker_count
    domain text not null
    command_type text not null
    outcome text not null
    count bigint not null
    seconds double precision not null default 0
    with autovacuum_vacuum_scale_factor=0
    with autovacuum_vacuum_threshold=50
    with fillfactor=50
    constraint pk_worker_count PRIMARY KEY (domain, command_type, outcome)
    CREATE UNIQUE INDEX pk_worker_count ON commandbus.command_bus_worker_count USING btree (domain, command_type, outcome)

table commandbus.rate_limit_counter
    scope text not null
    subject_id text not null
    limit_type text not null
    window_start timestamp with time zone not null
    current_value integer not null
    with autovacuum_vacuum_scale_factor=0
    with autovacuum_vacuum_threshold=50
    with fillfactor=50
    constraint pk_rate_limit_counter PRIMARY KEY (scope, subject_id, limit_type, window_start)
    constraint valid_limit_scope CHECK ((scope = ANY (ARRAY['global'::text, 'user'::text])))
    CREATE UNIQUE INDEX pk_rate_limit_counter ON commandbus.rate_limit_counter USING btree (scope, subject_id, limit_type, window_start)

table commandbus.rate_limit_exemption
    user_id text not null
    exempted_by text not null
    reason text not null
    expires_at timestamp with time zone
    created_at timestamp with time zone not null default now()
    constraint rate_limit_exemption_pkey PRIMARY KEY (user_id)
    CREATE UNIQUE INDEX rate_limit_exemption_pkey ON commandbus.rate_limit_exemption USING btree (user_id)

table commandbus.rate_limit_override
    user_id text not null
    max_pending_batches integer
    max_pending_children integer
    cooldown_seconds integer
    updated_by text not null
    updated_at timestamp with time zone not null default now()
    constraint rate_limit_override_pkey PRIMARY KEY (user_id)
    constraint valid_override CHECK ((LEAST(max_pending_batches, max_pending_children, cooldown_seconds) >= 0))
    CREATE UNIQUE INDEX rate_limit_override_pkey ON commandbus.rate_limit_override USING btree (user_id)

relation S command_bus_audit_audit_id_seq
relation S command_bus_audit_removal_removal_number_seq
relation S command_bus_check_run_run_id_seq
relation S command_bus_history_part
relation S command_bus_key_due_due_id_seq
relation S command_bus_key_number
relation c flow_fields
relation v approval_tickets
relation v batch_approval_tickets
relation v command_bus_moved_ticket
relation v v_batch_success_rate
relation v v_pending_retry
relation v v_queue_lag

function commandbus.acknowledge_replies(p_queue text, p_msg_ids bigint[], p_receipts bigint[]) returns SETOF bigint
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 800ab70e65d152fc5dca3f85d15b4b6b
function commandbus.add_note(p_domain text, p_command_id uuid, p_text text, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 512470da922deef49f81f173344740c4
function commandbus.add_seal(p_number bigint, p_first bigint, p_last bigint, p_rows integer, p_oldest timestamp with time zone, p_entries bytea, p_entries_digest bytea, p_removals bytea, p_removal_numbers bigint[], p_previous bytea, p_sealed_at timestamp with time zone, p_key_id text, p_digest bytea, p_signature bytea) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 85b19fd6ca201a49ac3bdd6347439885
function commandbus.add_worker_counts(p_items jsonb) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body bfc582d535f12b3ed8993b14f76191b0
function commandbus.adopt_map(p_shard text, p_version integer, p_default text, p_domains jsonb) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 41b004184eadb400ef6e855a6e28aed4
function commandbus.adopt_messages(p_domain text, p_envelopes jsonb) returns TABLE(n integer, verdict text)
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set plan_cache_mode=force_generic_plan, set search_path=pg_catalog, pg_temp, body c837f6506bf0a9e16e4d7b26324261c8
function commandbus.adopt_moved_map(p_move_id uuid, p_shard text, p_version integer, p_default text, p_domains jsonb) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 4fb7b7e4898019f232fb03cd882db9dc
function commandbus.after_quick_parts(p_after bigint, p_before timestamp with time zone) returns bigint
    plpgsql, stable, body 09e1c1ae2e823e991a359b05caa83255
function commandbus.archive_lock(p_physical text) returns bigint
    sql, immutable, body a90b0f2be6b4557e93de05f5868a4ae9
function commandbus.archive_part_rows(p_archive regclass, p_sequence regclass) returns bigint
    plpgsql, stable, body fdfa399299afc4af27e98be54b8f930c
function commandbus.archive_pieces(p_archive regclass) returns TABLE(piece regclass, first_id bigint, below_id bigint, is_tail boolean, is_kept boolean)
    sql, stable, body 16ba16bfe0d0806c2d15e371f765186f
function commandbus.archive_replies(p_queue text, p_msg_ids bigint[]) returns SETOF bigint
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 6ff972e1d66c05580a45ddc6cb25b499
function commandbus.assign_group(p_domain text, p_fingerprint text, p_assignee text, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body f7e2c2a47883e7a3ed04001d14576c33
function commandbus.audit_bulk(p_operation_id uuid, p_event text, p_actor text, p_reason text DEFAULT NULL::text) returns void
    sql, volatile, body 005691c5a01d02a2b52dd6636eed96a8
function commandbus.audit_bypass(p_domain text, p_command_ids uuid[], p_types text[], p_governed text[], p_on_behalf jsonb, p_how text, p_batch_id uuid DEFAULT NULL::uuid) returns void
    plpgsql, volatile, body 77c6823aa57ce67fa5fa1f725305a242
function commandbus.audit_edit_bypass(p_domain text, p_command_ids uuid[], p_edits jsonb, p_actor text) returns void
    plpgsql, volatile, body d45c930fa8d8ab528f0e2649b1b54be1
function commandbus.audit_group(p_domain text, p_fingerprint text, p_event text, p_details jsonb, p_actor text, p_is_there boolean) returns void
    plpgsql, volatile, body 8c58a53a05fd83f8978a549a5d137b53
function commandbus.audit_id_at(p_ts timestamp with time zone) returns bigint
    plpgsql, stable, body de40e2a0bb0c016ec53b1ac68a3a61fd
function commandbus.audit_limits(p_event text, p_actor text, p_details jsonb) returns void
    sql, volatile, body 3b5588766d3b9ece5d08e137209b0a96
function commandbus.audit_part_rows() returns bigint
    sql, stable, body 426d97db55c64722bfff19435aee1465
function commandbus.audit_parts() returns TABLE(part regclass, name text, first_id bigint, below_id bigint, is_tail boolean, is_kept boolean)
    sql, stable, body 7b2b71d5378f0cee0966453b0ecffe87
function commandbus.audit_pause(p_domain text, p_event text, p_details jsonb, p_actor text) returns void
    plpgsql, volatile, body 4a8b6d57045a711d8150c0553db96994
function commandbus.audit_row_digest(p_event commandbus.command_bus_audit) returns bytea
    sql, stable, body 1893db4e37261b787bf086d3b42a6b9f
function commandbus.audit_rule(p_domains text[], OUT o_before timestamp with time zone, OUT o_for_ever text[]) returns record
    plpgsql, stable, body 804dbf4d92231f617effa5142084ad30
function commandbus.audit_schedule(p_event text, p_schedule commandbus.command_bus_schedule, p_actor text, p_details jsonb DEFAULT '{}'::jsonb) returns void
    sql, volatile, body 2e7528ff7cab3601a13316aa4f2c9e84
function commandbus.audit_sequence(OUT o_sequence regclass, OUT o_last bigint, OUT o_cache bigint) returns record
    sql, volatile, body bbfe8ac9a099eab29f51bd0d1dfe5ec1
function commandbus.audit_writers(p_sequence regclass) returns TABLE(virtual_transaction text, pid integer)
    sql, volatile, body d229875f8b14059499d0b5af6259d207
function commandbus.batch_ending(p_domain text, p_batch_id uuid) returns TABLE(domain text, command_type text, command_id uuid, is_sent boolean, notifies boolean)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 5c95de5e99691726daaf2cbd86456ff0
function commandbus.batch_errors(p_domain text, p_batch_id uuid, p_scan integer DEFAULT 100000, p_failed integer DEFAULT 10000) returns TABLE(code text, parked bigint, failed bigint, sample_command_id uuid, sample_message text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 46d7d191be1bde09f14c1b0f170feaf6
function commandbus.batch_facts(p_domain text, p_batch_id uuid) returns TABLE(is_undecided boolean, is_sealed boolean, unqueued integer, workers integer, is_paused boolean)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body cdfdefc307dee5bf1100aef446615fe6
function commandbus.begin_arriving(p_move_id uuid, p_domain text, p_from_shard text, p_to_shard text, p_queues text[]) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 417a7b365ada4b655d820e3d5252bfff
function commandbus.begin_batches(p_domain text, p_batch_ids uuid[], p_now timestamp with time zone) returns boolean
    plpgsql, volatile, body 172479ebeb8ca6af955705fa9e00dc9a
function commandbus.begin_check(p_kind text, p_domain text, p_actor text, p_reason text DEFAULT NULL::text, p_seen_run bigint DEFAULT NULL::bigint) returns bigint
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 54ca97c3ac4acbee80e61fc2edcb4423
function commandbus.begin_console_session(p_session_id uuid, p_secret_hash bytea, p_token_id text, p_user_id text, p_longest interval, p_token_ends timestamp with time zone, p_details jsonb) returns timestamp with time zone
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 412c9df244cebb3af937ec90dfa4ba96
function commandbus.begin_cooldown(p_user text, p_now timestamp with time zone) returns void
    plpgsql, volatile, body 9ddd88ddbe874c18768cf2a72dc977de
function commandbus.begin_flow(p_domain text, p_command_ids uuid[], p_flow commandbus.flow_fields, p_now timestamp with time zone, p_batch_id uuid, p_actor text) returns void
    plpgsql, volatile, body f0e886153cbe5b17a9b11960c906e795
function commandbus.begin_leaving(p_domain text, p_to_shard text) returns uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 706e1ec2257fb8650e9a2db4038f7692
function commandbus.begin_load(p_domain text, p_batch_id uuid, p_source text, p_row_format jsonb, p_start_mode text, p_checkpoint_size integer DEFAULT NULL::integer, p_name text DEFAULT NULL::text, p_custom_data jsonb DEFAULT NULL::jsonb, p_created_by text DEFAULT NULL::text, p_on_complete jsonb DEFAULT NULL::jsonb, p_notifies boolean DEFAULT false, p_delimiter text DEFAULT NULL::text, p_options jsonb DEFAULT NULL::jsonb) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 91089fb4f636e4be692ab4a953d20575
function commandbus.begin_submission(p_user text, p_batch_type text, p_size integer, p_request_id uuid, p_digest bytea, p_defaults jsonb) returns TABLE(verdict text, ticket_id uuid, refusal jsonb, limits jsonb)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 068683b166860394213b9142b56ac961
function commandbus.block_keys(p_domain text, p_keys text[]) returns text[]
    plpgsql, volatile, body 8fa3242c58598acb3eb0b6aa1b9315d7
function commandbus.bulk_matches(p_domain text, p_filter jsonb, p_viewer text DEFAULT NULL::text) returns TABLE(command_id uuid, parked_at timestamp with time zone, command_type text, fingerprint text)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set search_path=pg_catalog, pg_temp, body ec70905ecad970ce0a188422cf459c6b
function commandbus.callbacks_across(p_domain text, p_shard text) returns text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 2ab5225def9c17edf319bfd4af3641ea
function commandbus.cancel_batch(p_domain text, p_batch_id uuid, p_reason text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 5000) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 7f6c3f1ad0ab2de7315c266c7dd6fecd
function commandbus.cancel_commands(p_domain text, p_command_ids uuid[], p_reason text, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 4a33b1cc9e3b5a627eec49a3c7ed78fd
function commandbus.cancel_leased(p_domain text, p_items jsonb) returns uuid[]
    sql, volatile, body 34cb396310efba3f7361a6ae2782d82c
function commandbus.cancel_leases(p_domain text, p_items jsonb, p_event text, p_now timestamp with time zone) returns uuid[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 5573f867a63016c1b4532ba5fb564f5b
function commandbus.cancel_load(p_domain text, p_batch_id uuid, p_reason text, p_actor text) returns boolean
    plpgsql, volatile, body 94abf8d7a912d3e2d6337202a28f682e
function commandbus.cancel_request(p_domain text, p_command_id uuid) returns TABLE(reason text, actor text)
    sql, stable, body 9a6c81d92033929dfdc8714bad49fe4c
function commandbus.cancel_requests(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, stable, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set search_path=pg_catalog, pg_temp, body 3f21363a7902511cf0f90fee6c684d5e
function commandbus.change_setting(p_name text, p_value text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ced10259790148e2fb27b16f8d8597f7
function commandbus.channel(p_name text) returns text
    sql, immutable, body 26e3ab0f94262d0dc04911a298d65a60
function commandbus.check_audit(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 24290b4b63faf69669219ff44d5b39ee
function commandbus.check_batches(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 0d2292c0b3bd601b38e4e1ba017a3510
function commandbus.check_bulk(p_verb text, p_arguments jsonb, p_rate double precision) returns void
    plpgsql, immutable, body d6c439f60d0e316a35612c50c4834a9a
function commandbus.check_bulk_start(p_limit integer, p_start_after interval) returns void
    plpgsql, immutable, body a2a5b72eaaa04b2ca54be548f3e944ff
function commandbus.check_commands(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body b15cec082db591442b9b2a29dd11a7d5
function commandbus.check_domain(p_domain text) returns void
    plpgsql, immutable, body 43cebe9b44e3c06acc4202dc5777786d
function commandbus.check_flow(p_commands jsonb, p_now timestamp with time zone) returns void
    plpgsql, volatile, body 4721df9a5c9822ddcd57cd33fc589d27
function commandbus.check_gates(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 4b3c5eeba6434f45169ee4d894bfeeee
function commandbus.check_keys(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 6f1924ef125d7c14f77e8f03b1ae5694
function commandbus.check_limit(p_domain text, p_type text, p_by_key boolean, p_max_running integer, p_rate double precision, p_per double precision, p_burst double precision) returns void
    plpgsql, volatile, body 8e4140b4007e46defa4e045a208b402a
function commandbus.check_messages(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body a778def05de04cc247bcacc64721b378
function commandbus.check_on_complete(p_on_complete jsonb) returns void
    plpgsql, volatile, body c34fdb7100b9d30bcafc496b1b009ba7
function commandbus.check_pause(p_domain text, p_reason text, p_until timestamp with time zone) returns void
    plpgsql, volatile, body aa6efbf0f8d4c191209fcd51884ae8fe
function commandbus.check_replies(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 8b83dfd3810829238b6f8c71a9628faf
function commandbus.check_reply_name(p_queue text) returns void
    plpgsql, stable, body 0584e0c7da79c534591ab4dbcba6ac84
function commandbus.check_reply_queue(p_queue text) returns void
    plpgsql, stable, body e446073fdf267746e3406b9a71b43c65
function commandbus.check_reply_queues(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 4df8ad861ee08101e0ed647a7bd5620f
function commandbus.check_roles(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body c1c5e7f264b4058ab075ea33c197aa1c
function commandbus.check_schedules(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 7b01d3a4889485e90cba27112f957229
function commandbus.check_seals(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body d71b041a1548c4a7e429b34f77fc9bc9
function commandbus.check_server(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone, p_patience interval DEFAULT '00:10:00'::interval) returns TABLE(code text, domain text, subject text, msg_id bigint)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body e83867d5b2fba44eac6277db09168da0
function commandbus.check_shard(p_domain text) returns void
    plpgsql, volatile, body cb97daeb6506ecf2dd99bd62fb378f92
function commandbus.check_troubleshooting(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 1458e26538504ad563aa79b068bfb608
function commandbus.check_unique(p_commands jsonb, p_batch_id uuid) returns void
    plpgsql, volatile, body 17938723358900dae6e6a2b44b0344cf
function commandbus.check_work(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, subject text, msg_id bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 72b4bb5981431429e80bd225a86fca06
function commandbus.child_digest(p_salt uuid, p_domain text, p_command_type text, p_sequence_no integer, p_data jsonb) returns bytea
    sql, immutable, body dc672b5dbbdcbd8152983de7bae0268f
function commandbus.claim_chore(p_name text, p_every interval) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 2390d21bfaeaaa24341017d2a3061dd8
function commandbus.claim_history(p_domain text) returns commandbus.command_bus_history_domain
    plpgsql, volatile, body 26e2aabbd81531e40abdb656e9fd1f76
function commandbus.claim_keeping(p_what text, p_every interval) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 1554a3c568f4852800b2329db35e60c5
function commandbus.claim_keys(p_domain text, p_keys text[]) returns void
    plpgsql, volatile, body 88cffc147bebabc9e21250badd4adf86
function commandbus.claim_keys_of(p_domain text, p_command_ids uuid[]) returns text[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 300d24d4f673e7bdc771bc93053a82f8
function commandbus.claim_sent_keys(p_sends jsonb) returns void
    plpgsql, volatile, body a217e0c397b9fe21d13baba0e011aa61
function commandbus.claim_stored(p_domain text, p_command_ids uuid[], p_from text[]) returns TABLE(command_id uuid, batch_id uuid, created_at timestamp with time zone, sequence_no integer)
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set plan_cache_mode=force_generic_plan, body ef517b6d45ad68e17164ad9d1e94c7ff
function commandbus.claim_ticket(p_batch_id uuid) returns void
    sql, volatile, body e9df097540606ecfa34b46cc622f0d73
function commandbus.claim_unique(p_domain text, p_keys text[]) returns void
    plpgsql, volatile, body 13ba1af6d467359a24db584ee2e8adc0
function commandbus.claim_unique_of(p_sends jsonb) returns boolean
    plpgsql, volatile, body 7643a35a92d255fd10aa30d3e9da7edf
function commandbus.clear_exemption(p_user text, p_actor text) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 0b186e7de1168bb6a4e77257dfb0bfbe
function commandbus.clear_limit(p_domain text, p_type text DEFAULT NULL::text, p_by_key boolean DEFAULT false, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 0e4860734030dccf1b15be3ad5330480
function commandbus.clear_retention(p_domain text, p_kind text) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ab64d1bf4aa3677af2edb161cb10bc68
function commandbus.close_batches(p_batch_ids uuid[], p_now timestamp with time zone, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, body fd8ccf74be8f00598463113a5b40888f
function commandbus.close_domains(p_domains text[]) returns void
    plpgsql, volatile, security definer, set lock_timeout=2s, set search_path=pg_catalog, pg_temp, body b5c11f8ea41ca7e8bf70adbb2742c74a
function commandbus.close_leases(p_domain text) returns void
    plpgsql, volatile, security definer, set lock_timeout=2s, set search_path=pg_catalog, pg_temp, body 5bf4ea5175a544ad4b765890a4ee5f19
function commandbus.closed_domains() returns SETOF text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 19ee210b7d2be2a2291bf994f3da37a7
function commandbus.closing_command_id(p_batch_id uuid, p_closing integer) returns uuid
    sql, immutable, security definer, set search_path=pg_catalog, pg_temp, body dc41179f995cdc5887ba609717f60936
function commandbus.command_events(p_domain text, p_command_id uuid, p_viewer text DEFAULT NULL::text, p_most integer DEFAULT 200, p_ends integer DEFAULT 50) returns TABLE(event commandbus.command_bus_audit, left_out integer)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body ed597067a62eace7009db95b413097ec
function commandbus.command_facts(p_domain text, p_command_id uuid) returns TABLE(dispatch_status text, fingerprint text, parked_at timestamp with time zone, has_payload boolean, has_edit boolean, cancel_requested_at timestamp with time zone, cancel_requested_by text, worker_seen_at timestamp with time zone, reply text, traceparent text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body ee4e69b7061a314684a95d6ce5f93f40
function commandbus.command_ids_of(p_messages jsonb[]) returns uuid[]
    plpgsql, stable, body 3f5c5075829f56d830dc58160d70b0e2
function commandbus.command_meta(p_domain text, p_command_id uuid) returns text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 076821d48664a80125b66af176a728d3
function commandbus.command_payload(p_domain text, p_command_id uuid) returns text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 7001b245b1cd07a39430fe88103ddee2
function commandbus.command_reply(p_domain text, p_command_id uuid) returns TABLE(command_type text, stands text, body text, secret_keys text[])
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 7a1fa1a28ece58f25d08d9b32c9b270d
function commandbus.complete_and_receive(p_domain text, p_items jsonb, p_vt integer, p_quantity integer, p_worker text, p_limits jsonb, p_mark_in_progress boolean, p_except text[], p_count_every text[], p_places integer) returns TABLE(command_id uuid, command_type text, msg_id bigint, lease_epoch bigint, attempt integer, max_attempts integer, is_suspect boolean, correlation_id uuid, reply_queue text, batch_id uuid, created_at timestamp with time zone, data text, snoozes integer, has_rules boolean, meta text, due_at timestamp with time zone, is_lost boolean)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 49522931307cc7f37ef7966d12070879
function commandbus.complete_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body b74f7ac29a2289345fdf2aac67271ab2
function commandbus.complete_leased(p_domain text, p_items jsonb, p_deleted bigint[] DEFAULT NULL::bigint[]) returns uuid[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 71b8f0bc2592bf50f438ea7b35ea72d2
function commandbus.confirm_start(p_domain text, p_command_id uuid, p_lease_epoch bigint) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 38ad5e989f0797fc75a1a17a4191ee42
function commandbus.consider_ticket(p_ticket_id uuid, p_defaults jsonb, p_earlier integer, p_items integer) returns TABLE(command_type text, secret_keys text[], looks jsonb, limits jsonb, earlier uuid[], rejected uuid, rejected_items jsonb, items jsonb)
    plpgsql, stable, security definer, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body fd15cb59a9ae3bc15d218312b6b248ab
function commandbus.content_digest(p_salt uuid, p_batch_type text, p_domain text, p_children bytea[]) returns bytea
    sql, immutable, body 044e921e0df501b5ece8a4115237a552
function commandbus.count_audit_part() returns text
    plpgsql, volatile, set plan_cache_mode=force_custom_plan, body 3d2d710496849ee26852db4f27d2d7d0
function commandbus.count_due_history(p_domain text, p_before timestamp with time zone) returns TABLE(what text, prunable bigint)
    plpgsql, stable, set plan_cache_mode=force_custom_plan, body ce1b0426d89c2d063ab8f8010eef32dc
function commandbus.count_edits(p_batch_ids uuid[]) returns void
    plpgsql, volatile, body 04ca85f75b98f0ed9d2305f5496c9a54
function commandbus.count_parts(p_domain text) returns TABLE(part text, amount bigint)
    plpgsql, stable, body 73e41f1d78a777c73821cd6431c6accf
function commandbus.count_prunable(p_domain text, p_kind text, p_before timestamp with time zone) returns TABLE(what text, prunable bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 59bc7f1960c5174158c806fa1c4be757
function commandbus.count_request(p_now timestamp with time zone DEFAULT clock_timestamp()) returns TABLE(current_value integer, reset_seconds integer)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body d36e1d4190cb81594d1a8af2fae5186f
function commandbus.count_running(p_rule commandbus.command_bus_flow_rule) returns void
    plpgsql, volatile, body 952e81258fbdf2671530311794016142
function commandbus.create_api_token(p_token_id text, p_user_id text, p_scopes text[], p_domains text[], p_label text, p_secret_hash bytea, p_expires_at timestamp with time zone, p_actor text DEFAULT NULL::text) returns timestamp with time zone
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 370598c6a9b4d374121a0e6301a8789a
function commandbus.create_batch(p_domain text, p_batch_id uuid, p_commands jsonb, p_name text DEFAULT NULL::text, p_custom_data jsonb DEFAULT NULL::jsonb, p_created_by text DEFAULT NULL::text, p_on_complete jsonb DEFAULT NULL::jsonb, p_notifies boolean DEFAULT false, p_actor text DEFAULT NULL::text) returns uuid[]
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body daf9055d9ddd8f3c1966d7b7de6c325d
function commandbus.create_batch_for(p_domain text, p_batch_id uuid, p_commands jsonb, p_digests bytea[], p_name text, p_custom_data jsonb, p_on_behalf jsonb) returns uuid[]
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body fa94a1b488eb3dd7490d0d02742343a4
function commandbus.create_console_code(p_secret_hash bytea, p_token_id text, p_life interval) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 551121d54e9ed607758f48e88d079ac3
function commandbus.create_stored_batch(p_domain text, p_batch_id uuid, p_commands jsonb, p_name text, p_custom_data jsonb, p_created_by text, p_on_complete jsonb, p_notifies boolean, p_pattern text, p_dispatch_rate double precision DEFAULT NULL::double precision, p_queue text DEFAULT NULL::text, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body a3bba07b459e70e893636dd44c2232e6
function commandbus.create_ticket(p_domain text, p_batch_id uuid, p_commands jsonb, p_batch_type text, p_user text, p_reason text, p_request_id uuid, p_digest bytea, p_requires_approval boolean, p_details jsonb, p_defaults jsonb, p_expires_seconds double precision DEFAULT NULL::double precision) returns TABLE(created_at timestamp with time zone, limits jsonb, content_digest text, expires_at timestamp with time zone)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body bf726c935234b515d02c6fa86142f790
function commandbus.decide_edit(p_domain text, p_command_id uuid, p_decision text, p_user text, p_reason text, p_digest text, p_self_approval boolean) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 64ccd3fffa93a089d8fcd87d4d6276e7
function commandbus.decide_ticket(p_domain text, p_ticket_id uuid, p_decision text, p_user text, p_reason text DEFAULT NULL::text, p_self_approval boolean DEFAULT false, p_digest text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body b9a1c6039cd2a6f949bcf30ac8fd628d
function commandbus.decision_maker(p_domain text, p_command_id uuid, p_batch_type text) returns text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 9572f6bf7f3c274b394dbc013b9c9f97
function commandbus.declare_secrets(p_domain text, p_keys jsonb) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 15a2948c499ca7e80c5bed8af396e8eb
function commandbus.delay_messages(p_domain text, p_msg_ids bigint[], p_delays double precision[], p_now timestamp with time zone) returns void
    plpgsql, volatile, body 11e2dd1ec41bd6b54f397f7a805fc2f0
function commandbus.delete_replies(p_queue text, p_msg_ids bigint[]) returns SETOF bigint
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 245c4fbd807bf060427d829c2f211079
function commandbus.delete_schedule(p_domain text, p_name text, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body cf2fa4d55b38fa4f8d659995a2d8cb75
function commandbus.digest_events(p_domain text, p_after bigint[], p_upto bigint[]) returns TABLE(n bigint, amount bigint, digest bytea)
    sql, stable, security definer, set DateStyle=ISO, set TimeZone=UTC, set IntervalStyle=postgres, set extra_float_digits=1, set bytea_output=hex, set search_path=pg_catalog, pg_temp, body 4919e2574c74421c81516d8ebd44f8aa
function commandbus.discard_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body c1b62fbb5386c0fe701313e639b889a8
function commandbus.dispatch_commands(p_domain text, p_batch_id uuid, p_from text[], p_limit integer) returns integer
    plpgsql, volatile, body 445031d4cf6569f022282de071a6ab0f
function commandbus.dispatch_figures(p_domain text, OUT lag_seconds double precision, OUT pending_retry bigint, OUT unconfirmed bigint, OUT unconfirmed_seconds double precision) returns record
    plpgsql, stable, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body 7a206758fd19e3a58a1cecaf55597171
function commandbus.dispatch_heartbeat(p_batch_id uuid) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body c1bfe2c6bcf5ca7949ccc8a4bfc3c0d6
function commandbus.dispatch_load(p_domain text, p_batch_id uuid, p_limit integer) returns integer
    plpgsql, volatile, security definer, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body ac2c1ad3fc699eeef31cdb138e6f17c9
function commandbus.divide_archive(p_physical text, p_archive regclass, p_domain text) returns text
    plpgsql, volatile, set lock_timeout=250ms, body ace1e55a32cb0d40d766f9d0de58c4ac
function commandbus.doctor(p_domain text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(code text, domain text, found bigint, examples text[])
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body b9bfcf8144b75ec682a72a890270b945
function commandbus.doctor_domains(p_domain text) returns SETOF text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body b87eb1a407ff9f9dd5b18be7e2db004f
function commandbus.domain_activity(p_domain text DEFAULT NULL::text, p_most integer DEFAULT 10000) returns TABLE(domain text, ready bigint, delayed bigint, is_estimate boolean, oldest_seconds double precision, queued_total bigint, left_total bigint, workers bigint, concurrency bigint, in_flight bigint, parked bigint, is_paused boolean)
    plpgsql, stable, security definer, set enable_seqscan=off, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body aea0c26ca8332309240de74ca3635fa7
function commandbus.domain_figures() returns TABLE(domain text, ready bigint, delayed bigint, oldest_seconds double precision, parked bigint, workers bigint, concurrency bigint, in_flight bigint, heartbeat_seconds double precision, batch_remaining bigint, replies bigint, replies_refused bigint)
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body 3aec319889553668e9519c44c5488a45
function commandbus.domain_names(p_limit integer) returns SETOF text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body e4074a8cb2fd44656686a70ba3713b76
function commandbus.domain_overview(p_domains text[] DEFAULT NULL::text[], p_most integer DEFAULT 10000) returns TABLE(domain text, ready bigint, delayed bigint, waiting bigint, about text[], due_seconds double precision, parked bigint, workers bigint, silent bigint, concurrency bigint, in_flight bigint, stuck bigint, is_paused boolean, paused_until timestamp with time zone)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 9a805fe902675fd1251727225cf37593
function commandbus.domain_rates(p_domains text[] DEFAULT NULL::text[]) returns TABLE(domain text, as_of timestamp with time zone, since timestamp with time zone, over_seconds double precision, queued bigint, removed bigint, completed bigint, failed bigint, parked bigint, retried bigint, hour_from timestamp with time zone, minutes integer[], queued_in bigint[], removed_in bigint[], lost_in bigint[])
    plpgsql, stable, security definer, set enable_seqscan=off, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body 6328bdf0f360c8d40bb8c7571782106b
function commandbus.domains_here() returns TABLE(domain text, has_left boolean)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 8f5933f4202ca354db601b8822f675b2
function commandbus.domains_on_the_way() returns text[]
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 9e5fadb49afc765df58c84ee7f2a7b4b
function commandbus.draft_seal(p_limit integer) returns TABLE(seal_number bigint, first_id bigint, last_id bigint, row_count integer, oldest_ts timestamp with time zone, entries bytea, previous bytea, previous_key text)
    plpgsql, volatile, security definer, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body 1c1507484eb5059df36079a2a6fe1550
function commandbus.drop_archive_parts(p_physical text, p_archive regclass, p_queue regclass, p_domain text, p_kind text, p_before timestamp with time zone, OUT o_did text, OUT o_gone bigint) returns record
    plpgsql, volatile, set lock_timeout=250ms, set plan_cache_mode=force_custom_plan, body c66ff59bcd0775b92c269ffdeabbef0a
function commandbus.drop_audit_parts(p_actor text DEFAULT NULL::text, OUT o_did text, OUT o_events bigint, OUT o_before timestamp with time zone) returns record
    plpgsql, volatile, set lock_timeout=250ms, set plan_cache_mode=force_custom_plan, body 0c4bec75ac441c0ed97749a657fcb3a9
function commandbus.drop_edits(p_domain text, p_command_ids uuid[], p_event text, p_reason text, p_actor text) returns void
    plpgsql, volatile, body a779d604dc57a78845c85d345fa1e345
function commandbus.drop_messages(p_queue text, p_msg_ids bigint[]) returns void
    plpgsql, volatile, body 758a7c773a840d94a324e20afd19b9bd
function commandbus.drop_moved_chunk(p_move_id uuid, p_from_no integer) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 671af84b2888bf0074c7f013df49a6c2
function commandbus.drop_places(p_domain text, p_command_ids uuid[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body c0c9cc11730861489631d7765fae0b1d
function commandbus.drop_unique(p_domain text, p_keys text[]) returns void
    sql, volatile, body 03d90d080718c2bcdeb2db200f84f220
function commandbus.drop_unique_of(p_sends jsonb) returns void
    sql, volatile, body 7296ad5d1907ed2ac4471f33126c36db
function commandbus.drop_unused_gates(p_domain text, p_limit integer) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body 93cd15270a023fdf259a27061a2d550c
function commandbus.drop_waiting(p_domain text, p_command_ids uuid[]) returns void
    plpgsql, volatile, body d711c02b0ef077e22f53165225e1b2cc
function commandbus.droppable_parts(p_physical text, p_archive regclass, p_queue regclass, p_before timestamp with time zone, OUT o_old regclass[], OUT o_kept regclass[], OUT o_first bigint, OUT o_below bigint) returns record
    plpgsql, volatile, body c43c15a90b9482e53e583d640b9afaac
function commandbus.due_at(p_domain text, p_status text, p_leased_by text, p_msg_id bigint, p_deliver_at timestamp with time zone) returns timestamp with time zone
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 62d35a84d2bb766f5494f0965edca63b
function commandbus.due_domains(p_domains text[]) returns SETOF text
    sql, stable, body 44c92ec5121afcfd755544c958be31d1
function commandbus.due_history(p_domain text, p_before timestamp with time zone, OUT o_parts regclass[], OUT o_rest bigint, OUT o_below bigint) returns record
    plpgsql, stable, set plan_cache_mode=force_custom_plan, body d7e8c3449a4f80e392e4cc8ffaa367b9
function commandbus.due_in(p_domains text[]) returns TABLE(domain text, seconds double precision)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body ca95858524b458318e3e8051c8a35d69
function commandbus.due_schedules(p_limit integer, p_without text[] DEFAULT '{}'::text[]) returns TABLE(now timestamp with time zone, schedule_id uuid, version bigint, next_tick_at timestamp with time zone, cron text, timezone text, every_seconds double precision, at timestamp with time zone, counted_from timestamp with time zone, missed text, missed_cap integer)
    plpgsql, volatile, security definer, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body 00319cf5a6c93da7380091e7df04cb59
function commandbus.edit_for(p_domain text, p_command_ids uuid[], p_reset_attempts boolean, p_edits jsonb, p_on_behalf jsonb) returns SETOF uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body f6ab91227cddca72a3b956e96ab9789b
function commandbus.edited_tickets(p_owner text, p_domains text[], p_batch_types text[], p_status text, p_from_at timestamp with time zone, p_from_id uuid, p_limit integer) returns TABLE(batch_id uuid, created_at timestamp with time zone)
    sql, stable, body e53041d4400671760cbfdfb4d69d9e4a
function commandbus.end_console_session(p_session_id uuid, p_user_id text, p_actor text, p_details jsonb) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 9b9b3a440045273b16e6479a8793182d
function commandbus.end_expired(p_limit integer DEFAULT 1000) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body d6f18d78cf1854af4473f935cb8ef3df
function commandbus.end_lapsed(p_domain text, p_command_ids uuid[], p_now timestamp with time zone) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 5d688fbf32b7eddb8c31d611a4300149
function commandbus.end_lapsed_paused(p_domain text, p_command_ids uuid[], p_now timestamp with time zone) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body a97dbce482a07e2c317dca7cf721df9b
function commandbus.end_leases(p_domain text, p_items jsonb, p_status text, p_has_failed boolean, p_now timestamp with time zone, p_is_snooze boolean DEFAULT false) returns TABLE(command_id uuid, msg_id bigint, batch_id uuid, command_type text, correlation_id uuid, reply_queue text, attempts integer, data jsonb, delay_seconds double precision, reason text, error_type text, error_code text, error_msg text, error_details jsonb, error_stack jsonb, snoozes integer, meta jsonb, has_key boolean)
    plpgsql, volatile, body b7ecc2d96b1c9ab4aacdf7963c64bb62
function commandbus.end_others(p_domain text, p_items jsonb, p_moved uuid[]) returns SETOF uuid
    plpgsql, volatile, body e92a5c2bb28c13a3d95c9270e17ba75b
function commandbus.end_pause(p_flow commandbus.command_bus_flow) returns boolean
    plpgsql, volatile, body 768a054cc7c53a111f8437c8aaba5fbc
function commandbus.end_pauses() returns integer
    plpgsql, volatile, body 090ce1edf99a78f3b74440bd25a757fa
function commandbus.end_type_pause(p_rule commandbus.command_bus_flow_rule, p_actor text, p_reason text DEFAULT NULL::text) returns void
    plpgsql, volatile, body 124da39501ec7cc32bfb6b4811dcf926
function commandbus.end_type_pauses(p_domain text) returns void
    plpgsql, volatile, body 6e9e3d2e7a3a1e94cc840ed8b035fcf9
function commandbus.end_unleased(p_domain text, p_command_ids uuid[], p_from text, p_to text, p_outcome text, p_event text, p_data jsonb, p_reason text, p_actor text, p_is_strict boolean) returns SETOF uuid
    plpgsql, volatile, body dd2b1a2a44c0463d60bda64f5a9ba79d
function commandbus.ended_status(p_batch_id uuid, p_not_completed integer) returns text
    sql, stable, body a36402252cb249e4b6c66cd712e7c367
function commandbus.ensure_domain(p_domain text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 5ee0b66edf853cfd66b55b208d29f68e
function commandbus.ensure_queue(p_queue text) returns void
    plpgsql, volatile, body 8621fdf1a6859f58caf9d24849cab50d
function commandbus.ensure_replies(p_domain text, p_replies text[]) returns void
    plpgsql, volatile, body cb0a5534e078a3fe9e08bc15fbcef6c7
function commandbus.ensure_target(p_domain text, p_batch_id uuid) returns void
    plpgsql, volatile, body 4e040717835500e0cdf7b3e806b8112c
function commandbus.enter_keys(p_domain text, p_command_ids uuid[], p_msg_ids bigint[], p_keys text[], p_numbers bigint[], p_places timestamp with time zone[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 571a6e990d4b4c542fcf6b0da3c31477
function commandbus.enter_troubleshooting(p_domain text, p_command_ids uuid[], p_reasons text[], p_now timestamp with time zone) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 050d9fae9a0a209e217fc88856ffb830
function commandbus.entry_points() returns TABLE(name text, roles text[])
    sql, immutable, body 09574ca820aebd53b31adb49a0a79136
function commandbus.expected_rows(p_table text, p_first timestamp with time zone, p_last timestamp with time zone) returns numeric
    plpgsql, volatile, body a9cebaf03b9003924011ca328c3a7dee
function commandbus.expire_edit(p_domain text, p_command_id uuid) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ebc917d9ee51224f7c056bc6b7db20e1
function commandbus.expire_in(p_domain text, p_command_ids uuid[]) returns integer
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body f9abb01283dd3f2da2eb84581bb4f468
function commandbus.expire_leased(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 2893e7232b1fcc024b4447b0017e9f40
function commandbus.expire_ticket(p_domain text, p_ticket_id uuid) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 5035d1df68d24665874f691b31864993
function commandbus.expired_decisions(p_limit integer) returns TABLE(domain text, batch_id uuid, command_id uuid)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 2c1675a4fb1f3c4a3ef9990cfdce4ec5
function commandbus.expired_since(p_expires_at timestamp with time zone) returns text
    sql, stable, body 9a7ef7def85582ab060bb8f39b68ddd0
function commandbus.expiry_after(p_now timestamp with time zone, p_seconds double precision) returns timestamp with time zone
    sql, immutable, body 41a244a11d7e9b080d7399a532e25d32
function commandbus.expose_unconfirmed(p_domain text, p_before timestamp with time zone, p_now timestamp with time zone, p_limit integer, OUT o_unconfirmed integer, OUT o_removed integer) returns record
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body 00c98dd56d6a781a2a2e1a17fc0cec45
function commandbus.expose_unqueued(p_domain text, p_grace interval, p_unconfirmed_after interval, p_limit integer, OUT o_unsent integer, OUT o_unconfirmed integer, OUT o_is_all boolean) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ec419fb30dfd10e28fdb250a38e769d1
function commandbus.expose_unsent(p_domain text, p_alive_since timestamp with time zone, p_now timestamp with time zone, p_limit integer) returns integer
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set plan_cache_mode=force_generic_plan, body 1a36ba3a9ce2ff2f5a6462dcbb20eea7
function commandbus.extend_leases(p_domain text, p_items jsonb, p_vt integer) returns SETOF uuid
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8eb7ebb77e4b1440e40fe8b0e1c6e6f0
function commandbus.fail_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body eb148def84be933279dbfbbee58ac746
function commandbus.fail_load(p_domain text, p_batch_id uuid, p_error text) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ade88d450b5e1009449391f8b8c5f2d1
function commandbus.fail_schedule(p_schedule_id uuid, p_version bigint, p_expected timestamp with time zone, p_error text, p_wait_seconds double precision) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 24ce1bd9d269193782d08999deee090d
function commandbus.failed_attempt(p_attempt integer, p_class text, p_code text, p_message text, p_details jsonb, p_delay double precision, p_stack jsonb) returns jsonb
    sql, stable, body b58d79849c9b1ecf88f215fd3128ea37
function commandbus.failure_details(p_attempt integer, p_class text, p_code text, p_message text, p_details jsonb, p_delay double precision) returns jsonb
    sql, stable, body 16e9c55be0f53febb57ead8f8ef9540d
function commandbus.failure_fingerprint(p_domain text, p_command_type text, p_error_class text, p_error_code text, p_message text) returns text
    sql, immutable, body e266ca36bfeb5a53c5b770f347bcf2a1
function commandbus.failure_stack(p_domain text, p_command_id uuid) returns jsonb
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 65a690ff9df7efa19814878eb80e9c6f
function commandbus.find_domains(p_command_id uuid) returns SETOF text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body b484e360e6496fe903b1651457c7b34b
function commandbus.find_id(p_id uuid, p_domains text[], p_viewer text) returns TABLE(kind text, domain text, status text)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body 06c3f483d216e8c326a1883f5cb3f3bb
function commandbus.find_in_history(p_domain text, p_command_ids uuid[]) returns uuid[]
    plpgsql, volatile, body e14cf6eef6b61d7c4ff3c2765db0d1df
function commandbus.find_reply(p_queue text, p_domain text, p_command_id uuid, p_ended timestamp with time zone, OUT o_stands text, OUT o_body text) returns record
    plpgsql, stable, body 6f23201f9de3a087c189a87950288749
function commandbus.find_request(p_user text, p_batch_type text, p_request_id uuid) returns SETOF commandbus.command_bus_batch
    sql, stable, body 0e5de7a78aa74d6e09c4d856ee9b02a9
function commandbus.finish_check(p_run_id bigint, p_result jsonb, p_error text DEFAULT NULL::text) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ee9006c53bd9c62cd2721df339aa6295
function commandbus.finish_dispatch(p_batch_id uuid, p_metric jsonb) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 73bc947f5949d2327f5dc42f2fdf7ff3
function commandbus.fire_schedules(p_fires jsonb) returns TABLE(schedule_id uuid, verdict text, sent integer, skipped integer)
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set search_path=pg_catalog, pg_temp, body 8759d07a9e4559deea3018b882030b3a
function commandbus.first_due(p_domain text, p_has_levels boolean) returns timestamp with time zone
    plpgsql, stable, set enable_seqscan=off, set enable_bitmapscan=off, body 89a11ae6a62fb9d5d8d07e2060bf734f
function commandbus.flow_members() returns text[]
    sql, immutable, body 3e719a59e816b430788c76aa6c9ce06b
function commandbus.flow_of(p_domain text, p_commands jsonb, p_now timestamp with time zone) returns commandbus.flow_fields
    plpgsql, volatile, body eda99c2f1e92f3ae5d05705b529fffd8
function commandbus.forget_dispatched(p_batch_ids uuid[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set plan_cache_mode=force_generic_plan, body 6115d8ea12e47d91cafb31d660342a47
function commandbus.forget_keys(p_domain text, p_keys text[]) returns void
    plpgsql, volatile, body a1b274687df756bcbd6098d89e7fb0c8
function commandbus.forget_moved_events(p_move_id uuid, p_after_id bigint, p_limit integer) returns bigint
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ac2161d91e02aebaaebc71a5fe22c387
function commandbus.forget_moved_rows(p_move_id uuid, p_part text, p_limit integer) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body a2a627f0178e6f9aadc68d0602de58e1
function commandbus.forget_sent_keys(p_sends jsonb) returns void
    plpgsql, volatile, body a082e2260ab3481c70a92f56001579d7
function commandbus.forget_unconfirmed(p_domain text, p_command_ids uuid[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set plan_cache_mode=force_generic_plan, body 352d47669ccf13f46e470ecdba30b117
function commandbus.forget_waiting(p_domain text, p_command_ids uuid[]) returns integer
    plpgsql, volatile, body 1b28b5ead765f0cc8705a3dd42958d45
function commandbus.forget_workers(p_worker text, p_silent_for interval) returns integer
    plpgsql, volatile, body e63b4e0a397a2ee2c96f834447b81ef8
function commandbus.former_audit_ids(p_audit_id bigint) returns TABLE(from_shard text, audit_id bigint, moved_at timestamp with time zone)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body b6fb242930b22cbf4b06a8f0e4c2ce29
function commandbus.former_payloads(p_domain text, p_command_id uuid, p_limit integer DEFAULT 20) returns TABLE(replaced_at timestamp with time zone, replaced_by text, data text, command_type text, secret_keys text[])
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 84fb39d20e7c3f341e42f05513a59393
function commandbus.free_places(p_domain text, p_command_ids uuid[]) returns void
    plpgsql, volatile, body f82c49e35f16686ac5f5be20c692bc2e
function commandbus.free_unused_places(p_domain text, p_limit integer) returns SETOF uuid
    plpgsql, volatile, body 5c976736637e20e16cb77f1d219e0f7c
function commandbus.freeze_table(p_domain text, p_relation regclass, p_parent text) returns void
    plpgsql, volatile, security definer, set lock_timeout=2s, set search_path=pg_catalog, pg_temp, body 1d358fe1257eeead159449e9f6ed3611
function commandbus.frozen_name(p_domain text) returns text
    sql, immutable, body 62026dce9fd246033ee29c342cd42ab6
function commandbus.frozen_tables(p_domain text) returns TABLE(relation regclass, parent text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 5e03a3f5b268490f056e253f21125da3
function commandbus.gate_state(p_domain text, p_gate text, p_now timestamp with time zone) returns TABLE(is_open boolean, room integer, tokens double precision)
    sql, stable, body b3d9938536ccac86cbed7e1f45eaa17f
function commandbus.gate_text(p_domain text, p_gate text) returns text
    sql, stable, body 3a87b39add79ae6a88dfe635f4cfea13
function commandbus.gate_type(p_gate text) returns text
    sql, immutable, body 3ffc9612157e829c2eb2f62422d0be12
function commandbus.gates_due(p_domain text, p_now timestamp with time zone) returns timestamp with time zone
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body 72bca34ef912fd85a4d32ef6834434c1
function commandbus.gates_of(p_domain text, p_now timestamp with time zone, p_msg_ids bigint[], p_command_ids uuid[], OUT o_firsts text[], OUT o_seconds text[], OUT o_thirds text[], OUT o_leased boolean[], OUT o_had jsonb[], OUT o_only text) returns record
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body a1299df3ecfc51675498219380078498
function commandbus.gates_without_rule(p_domain text) returns TABLE(first_gate text, end_gate text)
    plpgsql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body e389c6a86afbe3fc0a94fcef0e969369
function commandbus.give_unique(p_domain text, p_commands jsonb, p_numbers integer[], p_now timestamp with time zone) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body f1a9218e599531b115fbc087b7d5f7a0
function commandbus.go_past_numbers(p_sequences text[], p_last bigint[]) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body cdb7eae0d8ec922b63b0d1b5bfbbc185
function commandbus.goes_to_history(p_domain text) returns boolean
    sql, stable, body 87ff50fc7a0a46f3c94f6a60aa106ecb
function commandbus.governed_edits(p_domain text, p_edits jsonb) returns uuid[]
    sql, stable, body 2a9cab04dff5b6802f8188ae66f6570a
function commandbus.group_id(p_domain text, p_fingerprint text) returns uuid
    sql, immutable, security definer, set search_path=pg_catalog, pg_temp, body 4e248dde82d3f5db5dab5dbd697cd3dc
function commandbus.group_seen_by(p_viewer text, p_group commandbus.command_bus_failure_group) returns SETOF commandbus.command_bus_failure_group
    plpgsql, stable, set enable_seqscan=off, body bb26774fa7ec6ccad36de13d2a5a3349
function commandbus.group_trends(p_domain text, p_fingerprints text[] DEFAULT NULL::text[], p_hours integer DEFAULT 24, p_viewer text DEFAULT NULL::text) returns TABLE(domain text, fingerprint text, hour timestamp with time zone, seen bigint)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body cf2e2244d7ca871f9f895a113aaea9cc
function commandbus.grow_audit() returns text
    plpgsql, volatile, body 5fa2ece8ebf48e415e624186377f9095
function commandbus.grow_parts(p_table regclass, p_key text, p_sequence regclass, p_rows bigint, p_prefix text, p_options text, OUT o_did text, OUT o_part regclass) returns record
    plpgsql, volatile, set lock_timeout=250ms, body c2430b4eaae826f3cd7b177133e82125
function commandbus.handed_over(p_domain text, p_command_ids uuid[], p_leases bigint[]) returns TABLE(command_id uuid, command_type text, msg_id bigint, lease_epoch bigint, attempt integer, max_attempts integer, is_suspect boolean, correlation_id uuid, reply_queue text, batch_id uuid, created_at timestamp with time zone, data text, snoozes integer, has_rules boolean, meta text)
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set search_path=pg_catalog, pg_temp, body f66b7b01bf9fdb5ab33351440d68dc14
function commandbus.has_batch(p_domain text, p_items jsonb) returns boolean
    plpgsql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 4a074f0ff5ec25720461ef3fd0a63ba6
function commandbus.has_time(p_command_id uuid) returns boolean
    sql, immutable, body 92cbe6af22c79c6a61993c830d4b1fa7
function commandbus.hint_workers(p_domain text) returns void
    sql, volatile, body df95ca45de388bf005d623874578ba0e
function commandbus.history_floor(p_domain text, p_first timestamp with time zone, p_upper timestamp with time zone, p_step integer) returns timestamp with time zone
    plpgsql, stable, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, body 34568a56937469828a5f28a1cd6a255f
function commandbus.history_parts(p_domain text DEFAULT NULL::text) returns TABLE(part regclass, domain text, first_no bigint, below_no bigint)
    sql, stable, body 656735cf39577328710e92c31d9eedcc
function commandbus.history_rows(p_domain text, p_command_ids uuid[]) returns SETOF commandbus.command_bus_history
    plpgsql, stable, body 966617c76fd2e2252a77b9503b1af0ac
function commandbus.history_rows_anew(p_domain text, p_command_ids uuid[]) returns SETOF commandbus.command_bus_history
    plpgsql, stable, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, body 6a6c5962e6b4fc088fea1d0034a61410
function commandbus.history_rows_once(p_domain text, p_command_ids uuid[]) returns SETOF commandbus.command_bus_history
    plpgsql, stable, set enable_seqscan=off, set plan_cache_mode=force_generic_plan, body 6a6c5962e6b4fc088fea1d0034a61410
function commandbus.history_window(p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_error_code text, p_floor timestamp with time zone, p_upper timestamp with time zone, p_beyond_id uuid, p_limit integer, p_viewer text) returns TABLE(place timestamp with time zone, command commandbus.command_bus_history)
    plpgsql, stable, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, body 29dfd4f36e56aa860cd32b9fcf817d55
function commandbus.in_turn(p_flow commandbus.command_bus_flow, p_msg_ids bigint[], p_messages jsonb[], OUT o_msg_ids bigint[], OUT o_messages jsonb[]) returns record
    plpgsql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body a6008c662ed549d396c2166b022f0cbf
function commandbus.is_closed_part(p_physical text, p_queue regclass, p_first bigint, p_below bigint) returns boolean
    plpgsql, volatile, body 46ccc0436989633e9e0676735d53e0ec
function commandbus.is_counted(p_batch_type text) returns boolean
    sql, immutable, body 10b0bae7ceb0b9634b8cbac5fc15e81e
function commandbus.is_governed_for(p_schedule commandbus.command_bus_schedule) returns boolean
    sql, stable, body fe260e7f4968c5fad5386e37b5884021
function commandbus.is_key_gate(p_gate text) returns boolean
    sql, immutable, body 2566ed6f6844d512fcc415de39b3f2c6
function commandbus.is_made_by_us(p_physical text) returns boolean
    sql, stable, body 6cc1af0f4c359f480fb67d4e2f8cb490
function commandbus.is_moving(p_domain text) returns boolean
    sql, stable, body 532be421a3b2fb60b01e84926ccc9aec
function commandbus.is_old_reply(p_table text) returns text
    sql, stable, body 0a75f975b3cfdf4844395e9a5ab6a2e9
function commandbus.is_over_history(p_batch commandbus.command_bus_batch, p_domain text, p_before timestamp with time zone, p_rest bigint) returns boolean
    sql, stable, body 92867b9e0afee6d4bef130f39519739e
function commandbus.is_prunable_event(p_event commandbus.command_bus_audit, p_domain text, p_before timestamp with time zone) returns boolean
    sql, stable, body da5679acae079f30c456862364dab2a9
function commandbus.is_quick_part(p_physical text, p_queue regclass, p_part regclass, p_first bigint, p_below bigint, p_before timestamp with time zone) returns boolean
    plpgsql, volatile, body 1e647a3f74ba1390907837ffe75c0054
function commandbus.is_sent_anywhere(p_command_id uuid) returns boolean
    sql, stable, body 2b76de2f30902e6a4b0f6e65a7c68847
function commandbus.is_untouched_archive(p_archive regclass) returns boolean
    sql, stable, body 1fbd9748fd6e0961a3aea109137889bd
function commandbus.is_unused(p_gate commandbus.command_bus_gate) returns boolean
    sql, stable, body c6befcff4bf184f9bd9e4c7e10f5ca33
function commandbus.is_vacant(p_slot commandbus.command_bus_slot) returns boolean
    sql, stable, body 74da339c08fa408cd0634df9cc666423
function commandbus.is_waited_for(p_domain text, p_gate text) returns boolean
    plpgsql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body 3b7b82e690e329ccd6f8816f76c59bea
function commandbus.iso8601(p_ts timestamp with time zone) returns text
    sql, stable, body 71d3d1a94dbdb7c22853b052dde5e544
function commandbus.items_to_compare(p_domain text, p_ticket_id uuid, p_limit integer) returns jsonb
    sql, stable, body d1fadf74f42ec02eb3a021e3a80b7589
function commandbus.join_batch(p_domain text, p_batch_id uuid, p_count integer) returns void
    plpgsql, volatile, body 9c5686f17919c3d20e9af52f77a0af20
function commandbus.keep_content(p_batch_id uuid, p_batch_type text, p_domain text, p_commands jsonb, p_expires_seconds double precision, p_expires_at timestamp with time zone) returns bytea
    plpgsql, volatile, body d75f0b1379802c6a5ac1086a0e79efb6
function commandbus.keep_leases(p_domain text, p_items jsonb, p_vt integer) returns TABLE(command_id uuid, is_lost boolean)
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set search_path=pg_catalog, pg_temp, body 631c72dd5b664d91aaf8ac7c782843e0
function commandbus.keep_pauses() returns double precision
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 4b103e8d95f0f0042f4f85d477d5fa53
function commandbus.keep_payloads(p_domain text, p_msg_ids bigint[]) returns void
    plpgsql, volatile, body e7d6652691a47ddd780e8beb7fac09b7
function commandbus.keep_tokens(p_domain text, p_now timestamp with time zone, p_mine text[], p_gates text[], p_tokens double precision[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body d4d1ce9f030b2ebc0b3bd58c48e1a5a2
function commandbus.kept_events_after(p_after bigint, p_limit integer) returns integer
    sql, stable, body 7a3906dc85e7b436f2982776abfcc9d8
function commandbus.key_figures(p_domain text, OUT open_keys bigint, OUT blocked_keys bigint, OUT blocked_seconds double precision) returns record
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 4366c2492ca00af30bb4709324cd0d84
function commandbus.key_places(p_domain text, p_command_ids uuid[], p_keys text[], p_numbers bigint[], p_due timestamp with time zone[]) returns timestamp with time zone[]
    plpgsql, volatile, body 527e1556a042a1cdccbf047c7f7b45db
function commandbus.key_policy(p_domain text) returns text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 05230ca93f6da5f430651cece152a7e0
function commandbus.key_text(p_domain text, p_key text, p_number bigint) returns text
    sql, stable, body e52301daca029a406d0f048bc6d3644b
function commandbus.known_command(p_domain text, p_command_id uuid) returns SETOF commandbus.command_bus_command
    plpgsql, stable, body 4f007fa9f03452bec6b5915ae2e273b2
function commandbus.known_ids(p_domain text, p_command_ids uuid[]) returns uuid[]
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set search_path=pg_catalog, pg_temp, body 1a13e264d4e30aeaa73dad2c95f4500e
function commandbus.known_in_history(p_domain text, p_command_ids uuid[]) returns uuid[]
    plpgsql, volatile, body 363ba6a5117fca4f6db12b44d6bcca80
function commandbus.knows_domain(p_domain text) returns boolean
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 55cb320bf1a17f34e0e9f85092b6975d
function commandbus.lapsed_lately(p_queue text, p_now timestamp with time zone) returns bigint[]
    plpgsql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=on, set enable_bitmapscan=off, body 615c9917ad78da6e81a6b2491f266713
function commandbus.lapsed_lease(p_domain text, p_command_id uuid) returns jsonb
    sql, stable, body b5de758dce8183dede7bd877abf8a61d
function commandbus.last_number(p_sequence regclass) returns bigint
    plpgsql, volatile, body fcc92d723fe7146d7de88316824dded0
function commandbus.lease_replies(p_queue text, p_vt integer, p_quantity integer) returns TABLE(msg_id bigint, receipt bigint, body text)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 32349bd069085e59d91cd028ff16fae9
function commandbus.leave_flow(p_domain text, p_command_ids uuid[], p_is_over boolean, p_was_leased boolean DEFAULT false) returns void
    plpgsql, volatile, body 93ea87df0cd129569864c8eb8462e35e
function commandbus.leave_gates(p_domain text, p_command_ids uuid[]) returns void
    plpgsql, volatile, body 3966abceddafd899b7bbf73ec50c80ef
function commandbus.leave_keys(p_domain text, p_command_ids uuid[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 7f789108408f6fb0d315bfe287936014
function commandbus.leave_to_next(p_domain text, p_msg_ids bigint[], p_command_ids uuid[], p_now timestamp with time zone) returns void
    plpgsql, volatile, body f1b8e631d1a1bc372eb59dd4b2bfe3d2
function commandbus.leave_troubleshooting(p_domain text, p_command_ids uuid[], p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 58a50c43421446f9b4787fce9d402e92
function commandbus.left_in_domain(p_domain text) returns TABLE(what text, amount bigint)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 0edf988006e691723244c7a77bba14b1
function commandbus.let_domain_go(p_domain text) returns void
    plpgsql, volatile, body 878fe833acb9d79c1d9b1dcd241d3a57
function commandbus.limit_activity(p_domain text DEFAULT NULL::text, p_most integer DEFAULT 10000) returns TABLE(domain text, command_type text, by_key boolean, max_running integer, rate double precision, per_seconds double precision, burst double precision, is_paused boolean, running bigint, waiting bigint, oldest_seconds double precision)
    sql, stable, security definer, set enable_seqscan=off, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body 9c86e32c56d0c9fc692594f1c9f02419
function commandbus.limit_states(p_user text, p_defaults jsonb) returns TABLE(limit_type text, scope text, current_value integer, max_value integer, reset_seconds integer)
    plpgsql, stable, security definer, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body bce771959a5dbcf1828c25ba46d1c92a
function commandbus.limits_document(p_user text, p_defaults jsonb) returns jsonb
    sql, stable, body 84d30e6502aabe24cf0b4823c353a275
function commandbus.list_audit(p_domain text, p_command_id uuid, p_batch_id uuid, p_actor text, p_event_types text[], p_since timestamp with time zone, p_until timestamp with time zone, p_from_id bigint, p_is_newest_first boolean, p_limit integer, p_scan integer DEFAULT 100000, p_viewer text DEFAULT NULL::text, p_hides_access boolean DEFAULT false, p_domains text[] DEFAULT NULL::text[]) returns SETOF commandbus.command_bus_audit
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body b4c35dbcc9fe6cb142f341946789c279
function commandbus.list_failure_groups(p_domain text DEFAULT NULL::text, p_command_type text DEFAULT NULL::text, p_include_empty boolean DEFAULT false, p_limit integer DEFAULT 100, p_prefix text DEFAULT ''::text, p_viewer text DEFAULT NULL::text, p_search text DEFAULT NULL::text) returns SETOF commandbus.command_bus_failure_group
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body f4913554c08fa8ba7afc857b7d80f282
function commandbus.list_keys(p_domain text, p_is_blocked boolean DEFAULT NULL::boolean, p_viewer text DEFAULT NULL::text, p_after_blocked boolean DEFAULT NULL::boolean, p_after_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_after text DEFAULT NULL::text, p_limit integer DEFAULT 100) returns TABLE(ordering_key text, head uuid, head_type text, head_status text, is_blocked boolean, waiting bigint, since timestamp with time zone)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 9239bba265021fca6ea5bfcd02df7ecb
function commandbus.list_limit_keys(p_domain text, p_type text, p_limit integer DEFAULT 100) returns TABLE(limit_key text, running bigint, waiting bigint, oldest timestamp with time zone)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 702481ece87c756bf002bd1e93aacbb5
function commandbus.list_limits(p_domain text DEFAULT NULL::text) returns TABLE(domain text, command_type text, by_key boolean, max_running integer, rate double precision, per_seconds double precision, burst double precision, paused_at timestamp with time zone, paused_until timestamp with time zone, paused_by text, pause_reason text, updated_at timestamp with time zone, updated_by text, running bigint, tokens double precision, waiting bigint, oldest timestamp with time zone)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body bc217b69d7ffe97e4fab906896b8b272
function commandbus.list_people(p_domains text[], p_actor text, p_event_types text[], p_since timestamp with time zone, p_until timestamp with time zone, p_from_id bigint, p_limit integer, p_scan integer DEFAULT 100000, p_viewer text DEFAULT NULL::text, p_hides_access boolean DEFAULT false) returns TABLE(audit_id bigint, first_id bigint, domain text, event_type text, actor text, ts timestamp with time zone, first_ts timestamp with time zone, events bigint, command_id uuid, batch_id uuid, details_json jsonb)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body 4c2a623a00eae5a8b4eb6064c0e9c2b8
function commandbus.list_tickets(p_owner text, p_domains text[], p_batch_types text[], p_status text, p_from_at timestamp with time zone, p_from_id uuid, p_limit integer) returns TABLE(ticket_id uuid, created_at timestamp with time zone)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set enable_bitmapscan=off, set enable_sort=off, set enable_incremental_sort=off, set search_path=pg_catalog, pg_temp, body 4877fbfdc70260c0aaf6066bb75a33d2
function commandbus.list_troubleshooting(p_domain text, p_command_type text, p_limit integer, p_offset integer, p_group text DEFAULT NULL::text) returns TABLE(domain text, command_id uuid, command_type text, reason text, parked_at timestamp with time zone, attempts integer, max_attempts integer, last_error_type text, last_error_code text, last_error_msg text, correlation_id uuid, reply_queue text, batch_id uuid, created_at timestamp with time zone, data text)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 60519f4a1025e896dbe6e80b324ee783
function commandbus.load_chunk(p_domain text, p_batch_id uuid, p_checkpoint_no integer, p_first_row integer, p_commands jsonb, p_digest bytea, p_actor text DEFAULT NULL::text) returns text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8bcc0da75c78e08534c23627300e422d
function commandbus.load_chunk_for(p_domain text, p_batch_id uuid, p_checkpoint_no integer, p_first_row integer, p_commands jsonb, p_digest bytea, p_on_behalf jsonb) returns text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 2bfd539478c70e9487acce05d202436f
function commandbus.lock_batches(p_domain text, p_command_ids uuid[], p_also uuid[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body e0bd7e8f8761633da8edfe39f5994ed6
function commandbus.lock_commands(p_domain text, p_command_ids uuid[]) returns timestamp with time zone
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body f0cbe6fd2386488bb17134e6ef4c482f
function commandbus.lock_firing(p_fires jsonb, p_now timestamp with time zone) returns jsonb
    sql, volatile, body 6e22f737559b876cb1188827fdf257ae
function commandbus.lock_gates(p_domain text, p_gates text[]) returns text[]
    plpgsql, volatile, body af345d6d8100eac4de4ba0de1a0dff04
function commandbus.lock_leases(p_domain text, p_items jsonb) returns timestamp with time zone
    plpgsql, volatile, body 60b53bf6fce6c8b8038a3d6848a46d02
function commandbus.lock_load(p_domain text, p_batch_id uuid) returns commandbus.command_bus_load
    plpgsql, volatile, body b4d70c206a9a734365e6ef30586813da
function commandbus.lock_map() returns void
    plpgsql, volatile, security definer, set lock_timeout=10s, set search_path=pg_catalog, pg_temp, body 9977874f4c9feca7ca84e72db6c6dd91
function commandbus.lock_messages(p_queue text, p_msg_ids bigint[]) returns void
    plpgsql, volatile, body 57b980130ed12fbb15884ebbdab271e0
function commandbus.lock_queued(p_domain text, p_command_ids uuid[]) returns timestamp with time zone
    plpgsql, volatile, body 5af5e25cbb5b82147963bfca340382f0
function commandbus.lock_rules(p_domain text) returns void
    plpgsql, volatile, body 6f8091e1446cab13207c7c48cd1bbcb5
function commandbus.lock_submission(p_user text, p_batch_type text, p_request_id uuid) returns void
    plpgsql, volatile, body 5612030ae5f1fb9d7f5cb1042c85c4ec
function commandbus.lock_ticket(p_domain text, p_ticket_id uuid) returns commandbus.command_bus_batch
    plpgsql, volatile, body 1f527a90a2da62c4b9ee55d8467ffa81
function commandbus.lock_waiting(p_domain text, p_command_ids uuid[]) returns uuid[]
    plpgsql, volatile, body ac9be15220ac70f3f26a3bae429775da
function commandbus.look_at_inbox_reply(p_domain text, p_command_id uuid) returns text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body de7ee4273436cd8d90b66802904cd603
function commandbus.look_at_ticket(p_ticket_id uuid, p_user text, p_digest text) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 83f87e0dcd1c586482ece54d2ecd2d72
function commandbus.look_later(p_domain text, p_now timestamp with time zone) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 4f5f83cc658152c5f8ae49437defe8d8
function commandbus.lost_payloads(p_domain text, p_command_ids uuid[]) returns uuid[]
    plpgsql, stable, body 42e5ca4e932803899ea4ea8d7d715992
function commandbus.make_gates(p_domain text, p_gates text[]) returns boolean
    plpgsql, volatile, body bc854c9fcb1ca9c5d10902fc00e1d4b3
function commandbus.make_history_parts(p_domain text, p_first bigint, p_last bigint) returns void
    plpgsql, volatile, body a17d6664213aa3f1996d7f2447f9d429
function commandbus.make_queue_verbs(p_physical text) returns void
    plpgsql, volatile, body 01666b6c3ff33276417e6136c3ff1efc
function commandbus.mark_dispatch_failed(p_domain text, p_command_ids uuid[], p_error text, p_max_attempts integer DEFAULT 3) returns integer
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set plan_cache_mode=force_generic_plan, set search_path=pg_catalog, pg_temp, body e481dab9c2cb7473208a80a242bd0ea4
function commandbus.mark_dispatched(p_domain text, p_command_ids uuid[]) returns integer
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set plan_cache_mode=force_generic_plan, set search_path=pg_catalog, pg_temp, body 7d41c311bf2552957d515808c4db20c3
function commandbus.mark_frozen(p_move_id uuid) returns timestamp with time zone
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 2b11be236df885c78044473b543ed1d8
function commandbus.marked_payload(p_domain text, p_command_id uuid) returns TABLE(command_type text, data text, secret_keys text[])
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 1991a3bd7d844023b52c552c7c13d527
function commandbus.message_command_id(p_message jsonb) returns uuid
    sql, immutable, body ae5f47fa48ad3ee859e5c3455773bb1c
function commandbus.message_head(p_domain text, p_now timestamp with time zone) returns text
    sql, stable, body 1767088c8b63b4c36acf772c07bc9277
function commandbus.message_ids(p_domain text, p_command_ids uuid[]) returns bigint[]
    sql, volatile, body 3bd521ddd0ef939efec5c5d1fdeb96c5
function commandbus.message_member(p_domain text, p_command_id uuid, p_member text) returns text
    plpgsql, stable, body 0948a0ded22c7d67c1b0803f0c5e390b
function commandbus.meta_member(p_meta jsonb) returns jsonb
    plpgsql, stable, body 5035970d1602e9f23ae0296bf595a666
function commandbus.milliseconds_since(p_began timestamp with time zone) returns double precision
    sql, volatile, body 6c640c7f28674fee15c2341b1ddcf5e4
function commandbus.move_audit_horizon(OUT o_safe_to bigint, OUT o_waits_for text[], OUT o_noted_at timestamp with time zone) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body b2a72ee223e8cdc668ff4416037c4982
function commandbus.move_batch_counters(p_batch_ids uuid[], p_from text, p_to text, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body dc91cb745149730cbf4c0a3718761027
function commandbus.move_chunk(p_domain text, p_part text, p_is_early boolean, p_after jsonb, p_limit integer, OUT o_upto jsonb, OUT o_rows integer, OUT o_digest bytea, OUT o_bytes bigint) returns record
    plpgsql, stable, security definer, set DateStyle=ISO, set TimeZone=UTC, set IntervalStyle=postgres, set extra_float_digits=1, set bytea_output=hex, set search_path=pg_catalog, pg_temp, body 6e16e42a22ece57044303cbaffa3bcb3
function commandbus.move_columns(p_relation regclass) returns TABLE(name text, type text, is_stored boolean)
    sql, stable, body c45031a8e60e3809a250d53071f9d904
function commandbus.move_condition(p_domain text, p_part text, p_is_early boolean, p_after jsonb, p_upto jsonb, OUT o_relation regclass, OUT o_where text, OUT o_key text, OUT o_key_object text, OUT o_unique_by text[]) returns record
    plpgsql, stable, body 8376ffe5bbb54341b69304fea2986cff
function commandbus.move_digest(p_domain text, p_part text, p_is_early boolean, p_after jsonb, p_upto jsonb, OUT o_rows integer, OUT o_digest bytea) returns record
    plpgsql, stable, security definer, set DateStyle=ISO, set TimeZone=UTC, set IntervalStyle=postgres, set extra_float_digits=1, set bytea_output=hex, set search_path=pg_catalog, pg_temp, body 66008a7805c018408918c0ca15273f24
function commandbus.move_events(p_domain text, p_after_id bigint, p_safe_id bigint, p_limit integer, OUT o_upto_id bigint, OUT o_old_ids bigint[], OUT o_rows text[], OUT o_digest bytea) returns record
    plpgsql, stable, security definer, set DateStyle=ISO, set TimeZone=UTC, set IntervalStyle=postgres, set extra_float_digits=1, set bytea_output=hex, set search_path=pg_catalog, pg_temp, body 8e0de609f95cdb45ebd29360aac30780
function commandbus.move_layout(p_domain text) returns TABLE(part text, columns text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body d3c6d0263901ab4cb50f54db46d18d84
function commandbus.move_messages(p_domain text, p_command_ids uuid[], p_old timestamp with time zone[], p_due timestamp with time zone) returns timestamp with time zone[]
    plpgsql, volatile, body a07ae7d99fb5b9f6e1c0d058a7a00710
function commandbus.move_parts(p_domain text) returns TABLE(place integer, part text, relation regclass, keys text[], unique_by text[], scope text, early text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 2dca3bdefb4a799823bd57dee089775c
function commandbus.move_rows(p_domain text, p_part text, p_is_early boolean, p_after jsonb, p_upto jsonb) returns SETOF text
    plpgsql, stable, security definer, set DateStyle=ISO, set TimeZone=UTC, set IntervalStyle=postgres, set extra_float_digits=1, set bytea_output=hex, set search_path=pg_catalog, pg_temp, body d55bc35c113635719b4497a4e7c451c0
function commandbus.moved_children(p_domain text, p_batch_id uuid, p_status text, p_from integer, p_from_at timestamp with time zone, p_from_id uuid, p_below integer, p_limit integer) returns TABLE(command commandbus.command_bus_command, moved_at timestamp with time zone)
    plpgsql, stable, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, body e90d7d558906b37a0ce1318e34f2e7bd
function commandbus.moved_chunks(p_move_id uuid) returns TABLE(chunk_no integer, after_id bigint, upto_id bigint, row_count integer, digest bytea, is_whole boolean)
    sql, stable, security definer, set DateStyle=ISO, set TimeZone=UTC, set IntervalStyle=postgres, set extra_float_digits=1, set bytea_output=hex, set search_path=pg_catalog, pg_temp, body f9763f8d28738b9e70adf1735cfe1540
function commandbus.moved_details(p_domain text, p_command_id uuid) returns jsonb
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 0c53e16b5391dd89edef2e46b44987ef
function commandbus.moved_event(p_event commandbus.command_bus_audit) returns text
    sql, stable, body da5d55d0ff6df57a0441fc809dc5ea32
function commandbus.next_bulk(p_domain text, p_executor text, p_silent_for interval DEFAULT '00:00:05'::interval, p_can_edit boolean DEFAULT false) returns uuid
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body d4b4eaee1536da78a3e39450a1605bb4
function commandbus.next_due(p_domain text) returns double precision
    sql, stable, body 399f543b3f4e46661af4df7768f50851
function commandbus.next_history_no(p_domain text, p_last_no bigint) returns bigint
    sql, stable, body e56aebcecceabdbc42fb45c7c4dd4029
function commandbus.nobody() returns uuid
    sql, immutable, body 8c74b7b7ecc77607c4f4ba6382469bd8
function commandbus.normalise_message(p_message text) returns text
    plpgsql, immutable, body 74385378339fffff1919de28645372cf
function commandbus.note_archive_parts(p_physical text, p_archive regclass, p_queue regclass, p_sequence regclass) returns void
    plpgsql, volatile, body b8b3cbb5ce6a371f43e297e9f56dc342
function commandbus.note_chore(p_name text, p_told jsonb, p_failed boolean DEFAULT false) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 05d531ec54664aae748ddf813fc150fc
function commandbus.note_console_action(p_session_id uuid, p_actor text, p_details jsonb) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 5c980fadbbc2657662a24e6d8dd1f6d5
function commandbus.note_console_refusal(p_session_id uuid, p_actor text, p_details jsonb) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 87505b14a3cdcc78b205e4ad9508a568
function commandbus.note_group(p_domain text, p_fingerprint text, p_note text, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body e3155c64b0a9dcedb313ce9d8de89122
function commandbus.note_keys(p_domain text, p_keys text[]) returns void
    plpgsql, volatile, body 4b829f4efdfa91dddcf1b32b8d56f39a
function commandbus.note_load_total(p_domain text, p_batch_id uuid, p_total integer) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 595f49ae2ecc8591415f83dd12f2a029
function commandbus.note_move(p_move_id uuid, p_phase text, p_counts jsonb DEFAULT NULL::jsonb) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 35982c09925a1676a7c1fb3587f9f3dd
function commandbus.note_verified(p_move_id uuid, p_counts jsonb, p_frozen_at timestamp with time zone) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8cb2f63867d15a51b4ffd7581be11395
function commandbus.numbers_of(p_domain text) returns TABLE(sequence text, last bigint)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 916cc8824f126c8d716a13622d1f6841
function commandbus.offer_commands(p_domain text, p_commands jsonb, p_batch_id uuid DEFAULT NULL::uuid, p_actor text DEFAULT NULL::text, p_sequence_start integer DEFAULT NULL::integer) returns uuid[]
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body c60e1cf86be9abd970e49a5ea95b2570
function commandbus.offer_new(p_domain text, p_commands jsonb, p_batch_id uuid DEFAULT NULL::uuid, p_actor text DEFAULT NULL::text) returns integer[]
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 2af3a9ce4f7fa36b16a8a24fd8cc9090
function commandbus.offer_one(p_domain text, p_command_id uuid, p_type text, p_reply_to text, p_correlation_id uuid, p_max_attempts integer, p_message text, p_batch_id uuid DEFAULT NULL::uuid) returns uuid[]
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body f45c4d22e591ae61e21418c45b00e1f1
function commandbus.offer_unique(p_domain text, p_commands jsonb, p_batch_id uuid DEFAULT NULL::uuid, p_actor text DEFAULT NULL::text, p_skips_known boolean DEFAULT false, p_sent_by text DEFAULT NULL::text) returns TABLE(n integer, verdict text, command_id uuid)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 0775fbfabaea75eab4c11620b0fdfa3c
function commandbus.open_domains() returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 108079d5cfe2a1f93a1efd4d868b0bb7
function commandbus.open_gates(p_domain text, p_now timestamp with time zone) returns TABLE(gate text, room integer)
    plpgsql, volatile, body a79734778164f31f530422f08b21009a
function commandbus.open_leases(p_domain text) returns void
    plpgsql, volatile, security definer, set lock_timeout=2s, set search_path=pg_catalog, pg_temp, body bb5f3453ec9bb8861d75f6c787d539ea
function commandbus.operation_details() returns jsonb
    sql, stable, body cc761edc2ed3167bea8ced48fc44d208
function commandbus.operator_cancel(p_domain text, p_command_ids uuid[], p_reason text, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body c97364b658b79f940d590cc221ac6cc5
function commandbus.operator_complete(p_domain text, p_command_ids uuid[], p_result jsonb DEFAULT NULL::jsonb, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 1164696e87f220bc223a42ee536b5971
function commandbus.operator_retry(p_domain text, p_command_ids uuid[], p_actor text DEFAULT NULL::text, p_reset_attempts boolean DEFAULT true, p_is_strict boolean DEFAULT true, p_edits jsonb DEFAULT '{}'::jsonb) returns SETOF uuid
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body bd773a3675b1eff516cae26096b9e024
function commandbus.own_queues() returns TABLE(queue text, physical text)
    sql, stable, body 3fcbd8a564b53646b4f61e3daefe37a3
function commandbus.owner_differences(p_prefix text) returns TABLE(kind text, problem text, statement text)
    sql, stable, body 5b04140d4d42536d9032bf3490d05ff1
function commandbus.page_batch_commands(p_domain text, p_batch_id uuid, p_status text, p_from integer, p_from_at timestamp with time zone, p_from_id uuid, p_limit integer, p_scan integer DEFAULT 20000) returns TABLE(place integer, command commandbus.command_bus_command, moved_at timestamp with time zone)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body 09ab712b2be95a44a89962182d605898
function commandbus.page_troubleshooting(p_domain text, p_command_type text, p_group text, p_command_id uuid, p_after timestamp with time zone, p_after_id uuid, p_limit integer, p_offset integer DEFAULT 0, p_viewer text DEFAULT NULL::text) returns TABLE(domain text, command_id uuid, command_type text, reason text, parked_at timestamp with time zone, attempts integer, max_attempts integer, last_error_type text, last_error_code text, last_error_msg text, correlation_id uuid, reply_queue text, batch_id uuid, created_at timestamp with time zone, data text)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body b20e241f1dc62d7f63a29bab6041edb9
function commandbus.page_undecided(p_domains text[], p_newest_first boolean, p_after timestamp with time zone, p_after_id uuid, p_limit integer) returns TABLE(ticket_id uuid, command_id uuid, sequence_no integer, domain text, batch_type text, child_count integer, reason text, created_by text, editor text, created_at timestamp with time zone, expires_at timestamp with time zone, digest text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 273e61658eca2d28d9f4be1768e7591c
function commandbus.park_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 880f3e00826fa2db8b098de8d692967f
function commandbus.parked_payloads(p_domain text, p_command_ids uuid[]) returns TABLE(command_id uuid, command_type text, msg_id bigint, data text)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 96e629437353b050252f4ba4ca6498c7
function commandbus.part_begin(p_first_id bigint) returns text
    sql, immutable, body 3c2330ba979b350aa6694d6da3782c08
function commandbus.part_times(p_part regclass, OUT o_oldest timestamp with time zone, OUT o_newest timestamp with time zone) returns record
    plpgsql, volatile, body 98055efbd551062541d227e4db44f3f4
function commandbus.parts_of(p_table regclass) returns TABLE(part regclass, name text, first_id bigint, below_id bigint, is_tail boolean)
    sql, stable, body d60dc515c21ef612c63bede9c99c5a41
function commandbus.parts_that_stay() returns TABLE(part text)
    sql, immutable, body ed2bc2c8d73ad59bc70ad8977d1adf46
function commandbus.pass_over_message() returns trigger
    plpgsql, volatile, set search_path=pg_catalog, pg_temp, body b9a0754798748df018f8cbe6ccec9a11
function commandbus.pause_domain(p_domain text, p_reason text, p_until timestamp with time zone DEFAULT NULL::timestamp with time zone, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body a4e2787814fd0b9090604e0160d02708
function commandbus.pause_governed(p_ids uuid[], p_now timestamp with time zone) returns SETOF commandbus.command_bus_schedule
    sql, volatile, body 88cc6db971dd3712f40d7575690514d0
function commandbus.pause_schedule(p_domain text, p_name text, p_reason text DEFAULT NULL::text, p_actor text DEFAULT NULL::text) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 36f810058fcac8539a692dad5df39cd3
function commandbus.pause_type(p_domain text, p_type text, p_reason text, p_until timestamp with time zone DEFAULT NULL::timestamp with time zone, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8eff0d70e9b98c3bde83671845b75d97
function commandbus.paused_domains(p_domains text[] DEFAULT NULL::text[]) returns TABLE(domain text, paused_at timestamp with time zone, paused_until timestamp with time zone, paused_by text, pause_reason text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body dccf74fd6cd59c4dd43e4b585c470460
function commandbus.paused_types(p_domains text[] DEFAULT NULL::text[]) returns TABLE(domain text, command_type text, paused_at timestamp with time zone, paused_until timestamp with time zone, paused_by text, pause_reason text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 59592024a49afa745200b4a2d1029ee2
function commandbus.pending_users(p_defaults jsonb, p_limit integer DEFAULT 100) returns TABLE(user_id text, limit_type text, scope text, current_value integer, max_value integer, reset_seconds integer)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body e9d296af5ddf2f85c02545f959b462a7
function commandbus.physical_queue(p_queue text) returns text
    sql, immutable, body 5f3beb64afae7f0dc8ced466c550004a
function commandbus.preview_bulk(p_domain text, p_filter jsonb DEFAULT '{}'::jsonb, p_viewer text DEFAULT NULL::text) returns TABLE(fingerprint text, command_type text, error_class text, error_code text, message text, matched bigint)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body a027e9db8135672d98f454604753fb9f
function commandbus.progress_of(p_domain text, p_command_ids uuid[]) returns TABLE(command_id uuid, fraction double precision, message text, at timestamp with time zone)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body e2e4a09e070e23dc923eab324aea44ed
function commandbus.promote_keys(p_domain text, p_keys text[]) returns text[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=on, set enable_bitmapscan=off, body 342cbe186e34157be5fa2b1be04507dd
function commandbus.propose_edits(p_domain text, p_command_ids uuid[], p_edits jsonb, p_actor text, p_reset_attempts boolean) returns uuid[]
    plpgsql, volatile, body c95890a45dbee87794ca3ab5c7a04bde
function commandbus.protect_audit_part(p_part regclass) returns void
    plpgsql, volatile, body 0d75b74dfc44b03692f82c3b8aa734e1
function commandbus.prove_console_session(p_session_id uuid) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 0c2e3a8d306789f1f5e57c0d0400c1a0
function commandbus.prune_archived(p_domain text, p_before timestamp with time zone, p_limit integer, p_after text, p_spares_quick boolean, OUT o_pruned jsonb, OUT o_after text, OUT o_is_done boolean) returns record
    plpgsql, volatile, body 0de4c8284e705ca16a460a391ed27a95
function commandbus.prune_archives(p_domain text, p_before timestamp with time zone, p_limit integer, p_after text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, OUT o_pruned jsonb, OUT o_after text, OUT o_is_done boolean) returns record
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 477e1d40703a9d8cda8fd6b35b345b37
function commandbus.prune_audit(p_domain text, p_before timestamp with time zone, p_limit integer, p_after text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, OUT o_pruned jsonb, OUT o_after text, OUT o_is_done boolean) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 3d72107b1a0d91a5549998d9121d0fbe
function commandbus.prune_batches(p_domain text, p_before timestamp with time zone, p_limit integer, p_after text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, OUT o_pruned jsonb, OUT o_after text, OUT o_is_done boolean) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 12e6c8dd3c036d02612d8ec07714d272
function commandbus.prune_commands(p_domain text, p_before timestamp with time zone, p_limit integer, p_after text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, OUT o_pruned jsonb, OUT o_after text, OUT o_is_done boolean) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 4768f5223960c340641606e5a994f438
function commandbus.prune_due(p_what text, p_domain text, p_before timestamp with time zone, p_limit integer, p_after text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, OUT o_pruned jsonb, OUT o_after text, OUT o_is_done boolean) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 66a1afcc9a60682c5bf95fb6f2087e03
function commandbus.prune_history(p_domain text, p_before timestamp with time zone, p_limit integer, p_after text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, OUT o_pruned jsonb, OUT o_after text, OUT o_is_done boolean) returns record
    plpgsql, volatile, security definer, set lock_timeout=250ms, set search_path=pg_catalog, pg_temp, body 95dccfc0debbee3926dd533c354c275e
function commandbus.prune_replies(p_domain text, p_before timestamp with time zone, p_limit integer, p_after text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, OUT o_pruned jsonb, OUT o_after text, OUT o_is_done boolean) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 122480b31dd039f4d0be1949d42b15c2
function commandbus.prune_unique(p_limit integer DEFAULT 1000) returns integer
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set search_path=pg_catalog, pg_temp, body 708f9f5730ceb696ce9b8ab49533b498
function commandbus.prune_word(p_what text, p_moves boolean) returns text
    sql, immutable, body 27f5df4715c6f2dc41fce641b411d3e6
function commandbus.prune_workers(p_silent_for interval DEFAULT '01:00:00'::interval) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body a4df35ef078901af01ced0b6d238a135
function commandbus.publish_replies(p_domain text, p_queues text[], p_replies jsonb[]) returns void
    plpgsql, volatile, body 609d1cac5b7ee3e5f67a29f79e3d2c41
function commandbus.put_again(p_domain text, p_command_ids uuid[], p_messages jsonb[]) returns bigint[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 9912300a9f82f39861b7b8816f980ede
function commandbus.put_in_history(p_domain text, p_command_ids uuid[]) returns void
    plpgsql, volatile, body 59560ed8b3759dd53b11560ff04e570b
function commandbus.put_keyed(p_domain text, p_command_ids uuid[], p_messages jsonb[], p_due timestamp with time zone[], p_levels smallint[]) returns bigint[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 52294cd9d91c59c1af48cbf783b0d95c
function commandbus.put_messages(p_queue text, p_messages jsonb[]) returns bigint[]
    plpgsql, volatile, body 8c77d1e9aef2cd62edaba312222918a7
function commandbus.put_moved_events(p_move_id uuid, p_chunk_no integer, p_after_id bigint, p_upto_id bigint, p_old_ids bigint[], p_rows text[], p_digest bytea) returns boolean
    plpgsql, volatile, security definer, set DateStyle=ISO, set TimeZone=UTC, set IntervalStyle=postgres, set extra_float_digits=1, set bytea_output=hex, set search_path=pg_catalog, pg_temp, body abbb3c00b4edec1835c96504d09c8652
function commandbus.put_moved_rows(p_move_id uuid, p_part text, p_is_early boolean, p_after jsonb, p_upto jsonb, p_rows text[], OUT o_rows integer, OUT o_digest bytea) returns record
    plpgsql, volatile, security definer, set DateStyle=ISO, set TimeZone=UTC, set IntervalStyle=postgres, set extra_float_digits=1, set bytea_output=hex, set search_path=pg_catalog, pg_temp, body a73d38e2dfd9935fdc95f4bde85dbbdf
function commandbus.put_packed(p_queue text, p_head text, p_lines text) returns bigint[]
    plpgsql, volatile, body e4e9e4e521013f80906af56d28ccdd4b
function commandbus.put_placed(p_queue text, p_messages jsonb[], p_due timestamp with time zone[], p_levels smallint[]) returns bigint[]
    plpgsql, volatile, body 2374133a610aa714775b033d72966612
function commandbus.put_schedule(p_domain text, p_name text, p_schedule_id uuid, p_spec jsonb, p_next timestamp with time zone, p_counted_from timestamp with time zone, p_version bigint, p_actor text DEFAULT NULL::text, p_on_behalf jsonb DEFAULT NULL::jsonb) returns text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8d8da46a187ae18b3f83c0be98e3cfa3
function commandbus.query_commands(p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_limit integer, p_offset integer) returns SETOF commandbus.command_bus_command
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set search_path=pg_catalog, pg_temp, body ad77f680ec032387938f09f2d167e32f
function commandbus.queue_counts(p_domain text, p_now timestamp with time zone, p_most integer, OUT ready bigint, OUT delayed bigint, OUT waiting bigint, OUT about text[], OUT due_since timestamp with time zone) returns record
    plpgsql, volatile, set enable_seqscan=off, set enable_bitmapscan=off, body 178695c303bde5ff5f48c5f8fff7ed32
function commandbus.queue_domain(p_physical text) returns text
    sql, immutable, body 31664fb7f709532bcff6f18d5707742e
function commandbus.queue_exists(p_queue text) returns boolean
    sql, stable, body 0f42882c02f9413a9ee14a7c9f1a18f1
function commandbus.queue_mark() returns text
    sql, immutable, body 0ff365f0ddc6241cc84d2988d15293d5
function commandbus.queue_pending(p_domain text, p_command_ids uuid[]) returns uuid[]
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 1b7d3caa96b996b80bcaec44cd6783b7
function commandbus.queue_stored(p_domain text, p_command_ids uuid[], p_from text[]) returns uuid[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set plan_cache_mode=force_generic_plan, body 4c56ddaeb54978497cdf4c5cbec46451
function commandbus.queue_tables() returns TABLE(queue text, physical text, relation regclass)
    sql, stable, body fe932d16ccf5b8329b04a4c9d92263cc
function commandbus.queue_verb(p_verb text, p_physical text) returns text
    sql, stable, body 63ccd1fab01305e9cc6f69947650f3ca
function commandbus.queued_domains(p_domain text DEFAULT NULL::text) returns SETOF text
    sql, stable, body 878af5b0f17e6dbf79aa7b8d12ed1d1b
function commandbus.read_levels(p_queue text, p_now timestamp with time zone, p_vt integer, p_quantity integer, p_level_seconds double precision, p_from_head boolean) returns TABLE(msg_id bigint, message jsonb)
    plpgsql, volatile, set enable_indexscan=on, set enable_bitmapscan=off, body c562b22c30234f75a236cee621f5092c
function commandbus.read_levels_except(p_queue text, p_now timestamp with time zone, p_vt integer, p_quantity integer, p_level_seconds double precision, p_except text[]) returns TABLE(msg_id bigint, message jsonb)
    plpgsql, volatile, set enable_indexscan=on, set enable_bitmapscan=off, body 1221122172772c165a6f11666725bef4
function commandbus.read_messages(p_queue text, p_now timestamp with time zone, p_vt integer, p_quantity integer, p_from_head boolean DEFAULT false, p_except text[] DEFAULT '{}'::text[]) returns TABLE(msg_id bigint, message jsonb)
    plpgsql, volatile, set enable_indexscan=on, set enable_bitmapscan=off, body a8e00aabe74e754734c515ce5cab9ed9
function commandbus.read_replies(p_queue text, p_vt integer, p_quantity integer) returns TABLE(msg_id bigint, body text)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 0911135af42686de6ca5160964a7fd75
function commandbus.read_waiting(p_domain text, p_now timestamp with time zone, p_vt integer, p_quantity integer, p_except text[], p_gates text[], p_rooms integer[]) returns TABLE(msg_id bigint, message jsonb)
    plpgsql, volatile, body 892b12c2f7291a5c84d5d38f74a334e4
function commandbus.readable() returns TABLE(relation text, columns text, roles text[])
    sql, immutable, body 9d6968432aa59c9a7b2ccdd2d9e2b8dc
function commandbus.receive_commands(p_domain text, p_vt integer, p_quantity integer, p_worker text, p_limits jsonb DEFAULT '{}'::jsonb, p_mark_in_progress boolean DEFAULT true, p_from_head boolean DEFAULT false, p_except text[] DEFAULT '{}'::text[], p_count_every text[] DEFAULT '{}'::text[], p_places integer DEFAULT NULL::integer) returns TABLE(command_id uuid, command_type text, msg_id bigint, lease_epoch bigint, attempt integer, max_attempts integer, is_suspect boolean, correlation_id uuid, reply_queue text, batch_id uuid, created_at timestamp with time zone, data text, snoozes integer, has_rules boolean, meta text, due_at timestamp with time zone)
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set plan_cache_mode=force_generic_plan, set search_path=pg_catalog, pg_temp, body 6ab670bae77bbab29eff094b319765d9
function commandbus.record_bulk(p_operation commandbus.command_bus_bulk_operation, p_first integer, p_command_ids uuid[], p_ready uuid[], p_lost uuid[], p_done uuid[], p_errors jsonb, p_now timestamp with time zone, OUT o_done integer, OUT o_skipped integer, OUT o_failed integer) returns record
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 367d10dc03674d82ff1053c065805452
function commandbus.record_check(p_kind text, p_domain text, p_actor text, p_is_fix boolean, p_started_at timestamp with time zone, p_result jsonb) returns bigint
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 54c6c8116fa0cc855085605c3065db54
function commandbus.record_keys(p_domain text, p_command_id uuid, p_event text, p_details jsonb, p_actor text) returns void
    sql, volatile, body 38684cf12541d1b6505884d13619aaed
function commandbus.record_progress(p_domain text, p_items jsonb) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 4e90eaf99533885a96aee55dfe8dad42
function commandbus.record_removal(p_domain text, p_ids bigint[], p_before timestamp with time zone, p_actor text) returns void
    plpgsql, volatile, set enable_seqscan=off, body 2bc880dd107152913294613ba863203f
function commandbus.record_repair(p_domain text, p_command_id uuid, p_batch_id uuid, p_details jsonb, p_actor text) returns void
    sql, volatile, body 9770394d662f538446704251dbb96f0d
function commandbus.recount_batch(p_batch_id uuid, OUT total integer, OUT completed integer, OUT failed integer, OUT canceled integer, OUT parked integer) returns record
    sql, stable, body 704a8120b38d970db7345b7938c09832
function commandbus.recover_dispatch(p_domain text, p_grace interval DEFAULT '00:02:00'::interval, p_limit integer DEFAULT 1000, p_max_attempts integer DEFAULT 3, p_group integer DEFAULT 100, p_alert_after interval DEFAULT '00:30:00'::interval, p_unconfirmed_after interval DEFAULT '01:00:00'::interval, p_after jsonb DEFAULT NULL::jsonb) returns TABLE(queued integer, failed integer, given_up integer, overdue integer, unconfirmed integer, next_after jsonb)
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set plan_cache_mode=force_generic_plan, set search_path=pg_catalog, pg_temp, body 818f6a29ec32378f913916d9bb3c5f0e
function commandbus.refuse_audit_change() returns trigger
    plpgsql, volatile, set search_path=pg_catalog, pg_temp, body 647344e5dd30dc39aad284c2017150f1
function commandbus.refuse_canceled_load(p_load commandbus.command_bus_load) returns void
    plpgsql, volatile, body 3474277c3fed72eb81b561c8cfd35306
function commandbus.refuse_changed_content(p_batch commandbus.command_bus_batch, p_content commandbus.command_bus_content, p_command_ids uuid[]) returns void
    plpgsql, volatile, body cd30140b408548b5dad8cbee81efda7d
function commandbus.refuse_decision(p_batch commandbus.command_bus_batch, p_decision text, p_user text, p_self_approval boolean) returns void
    plpgsql, volatile, body 3d252510321be8b5d4426ce309c3ad39
function commandbus.refuse_digest(p_digest bytea, p_seen text, p_what text) returns void
    plpgsql, volatile, body 6f330d10e6887bea56babd83bdb77e64
function commandbus.refuse_edit_decision(p_edit commandbus.command_bus_edit, p_command_id uuid, p_user text, p_self_approval boolean) returns void
    plpgsql, volatile, body d4ffee482ff22ae214d830ff787aadd5
function commandbus.refuse_flow(p_command_id uuid, p_problem text, p_hint text) returns void
    plpgsql, volatile, body ffb77ff1d47ae1a716162d8dd67da415
function commandbus.refuse_frozen() returns trigger
    plpgsql, volatile, set search_path=pg_catalog, pg_temp, body 42e6270fc92272a63c4783c0ab3163c3
function commandbus.refuse_known_ids(p_domain text, p_commands jsonb, p_known uuid[]) returns uuid
    plpgsql, volatile, body bcc1304f4a073bcd807f1afaab13cb5d
function commandbus.refuse_left_domain() returns trigger
    plpgsql, volatile, set search_path=pg_catalog, pg_temp, body 917086c0caa7d14bfa775d2e5a0aea49
function commandbus.refuse_moved(p_domain text, p_command_id uuid) returns void
    plpgsql, volatile, body e9603d55272e180a3967f64b2b2e9f15
function commandbus.refuse_moved_batch(p_batch_id uuid) returns void
    plpgsql, volatile, body d8ca82be1b1fa6a44f8fae03d7ff284d
function commandbus.refuse_moving_domain() returns trigger
    plpgsql, volatile, set search_path=pg_catalog, pg_temp, body 9f233f07927fc3dcb8f37f6c9fe0a11d
function commandbus.refuse_outdated_edits(p_domain text, p_edits jsonb, p_from text[]) returns void
    plpgsql, volatile, body abd73a034498c582d4dba791ee9113e1
function commandbus.refuse_repeated_ids(p_commands jsonb) returns void
    plpgsql, volatile, body bb5b4e44369cbcea27ffde65de993275
function commandbus.refuse_seal_change() returns trigger
    plpgsql, volatile, set search_path=pg_catalog, pg_temp, body f48fa981515b737b2ed8b81b35ba9772
function commandbus.refuse_shard(p_map commandbus.command_bus_shard, p_domain text) returns void
    plpgsql, volatile, body a971593cbed4b7d5ed50f3e33e06a6de
function commandbus.refuse_times(p_domain text, p_command_ids uuid[], p_due timestamp with time zone, p_is_later boolean, p_is_strict boolean) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 0a4da595d701cfc9f4765f4f83a7a899
function commandbus.refuse_unmoved(p_domain text, p_command_ids uuid[], p_moved uuid[], p_verb text, p_wanted text) returns void
    plpgsql, volatile, body 26035fd88c42c034a511197da574e7af
function commandbus.refuse_while_moving(p_domain text) returns void
    plpgsql, volatile, body 94033f2afc0aa1784d9ee3d0fe484c44
function commandbus.register_batch_types(p_types jsonb) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 2058258c6886464c5e3634397b1a5fd9
function commandbus.reject_stale(p_domain text, p_items jsonb, p_moved uuid[]) returns SETOF uuid
    plpgsql, volatile, body 452e0da4ec8b3ad15697ba703579b77f
function commandbus.release_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 239b186b022a9b1d92703976679d63f5
function commandbus.release_waiting(p_domain text, p_limit integer DEFAULT 1000) returns integer
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body 2c192e4ec0eca5a1db2eb54b1bf13087
function commandbus.remember_sender(p_domain text, p_command_ids uuid[], p_digests bytea[], p_on_behalf jsonb) returns void
    plpgsql, volatile, body cda56e1269b9a5ba851b4d34476f70d4
function commandbus.remove_batches(p_batch_ids uuid[]) returns void
    plpgsql, volatile, body 39974d48ab67ca674dd58f3889a2ccc3
function commandbus.remove_commands(p_domain text, p_command_ids uuid[]) returns void
    plpgsql, volatile, body 00e9645cfb9eb05edb63864fc8fdcc40
function commandbus.remove_governed_type(p_domain text, p_command_type text, p_batch_type text, p_actor text DEFAULT NULL::text) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8aeb22bb9eea523ae353b7d4a221b995
function commandbus.remove_moved_events(p_move_id uuid, p_ids bigint[]) returns void
    plpgsql, volatile, body 65a31e0457a3aeb6ffe6e696793c06ba
function commandbus.repair_batches(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 143a458ac05d8d28ef3326a85c3d8d28
function commandbus.repair_groups(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body a0eff0f62fd73e225579e48314348ad8
function commandbus.repair_keys(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 402bbde24106172da7df55e678db2153
function commandbus.repair_lost_messages(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body b55519c0a183228666ddc8d3d18f5544
function commandbus.repair_messages(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8d98e405ab6b44d5b4b5e4a8be7fef25
function commandbus.repair_places(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 957f952fe5758a75642682fd6449b7e6
function commandbus.repair_queues(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ff95ceeb618f4c89b997197dcd1ac3f9
function commandbus.repair_troubleshooting(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8083bed69f8f6c8756ea1255319ded7c
function commandbus.repair_waiting(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body dd6f1ad8f7519838f5bb8ec9fd7777fd
function commandbus.repair_workers(p_domain text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 1000) returns SETOF text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8fa905ee484fff540d11b41e9f4d5841
function commandbus.replace_waiting(p_domain text, p_holder uuid, p_command jsonb, p_actor text, p_sent_by text) returns void
    plpgsql, volatile, body 38760107c41d5c3666e60d0569b347a3
function commandbus.reply_backlog(p_domain text, p_limit integer DEFAULT 10000) returns TABLE(queue text, waiting bigint, unread bigint, unread_since timestamp with time zone, refused bigint)
    plpgsql, stable, body 99510d3197ac8219bb0f776704367adf
function commandbus.reply_body(p_domain text, p_command_id uuid, p_correlation_id uuid, p_command_type text, p_outcome text, p_completed_at text, p_data jsonb, p_error jsonb, p_meta jsonb DEFAULT NULL::jsonb) returns jsonb
    sql, stable, body f3a9dd180d3c99d40e0c55e71f15916d
function commandbus.reply_error(p_code text, p_message text, p_class text) returns jsonb
    sql, stable, body 29991f3e614b0473d1eaec901f34c602
function commandbus.reply_tables(p_domain text) returns SETOF text
    sql, stable, body e385c29151448fd07848abfe39678b0a
function commandbus.request_batch_cancel(p_domain text, p_batch_id uuid, p_reason text, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 5000) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 8c546b73c4e04e86e6c1c1ea9e22c7f6
function commandbus.request_cancel(p_domain text, p_command_ids uuid[], p_reason text, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 21ce78e601caf91e82f3308e5d7f8b77
function commandbus.requeue_commands(p_domain text, p_command_ids uuid[], p_from text[], p_actor text, p_reset_attempts boolean, p_edits jsonb DEFAULT '{}'::jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body dacb3229f585d91f43aa9893e280de73
function commandbus.require_batch(p_domain text, p_batch_id uuid) returns void
    plpgsql, volatile, body 59672843d633db98d5be1714559a6ac9
function commandbus.require_bulk(p_operation_id uuid) returns text
    plpgsql, stable, body c448b96c8d8aa588b8850530034ffb9a
function commandbus.require_editor(p_actor text, p_command_ids uuid[]) returns void
    plpgsql, volatile, body 9fd27f07e81ac3b20c20b709ba9d9b16
function commandbus.require_move(p_move_id uuid, p_is_leaving boolean) returns commandbus.command_bus_move
    plpgsql, volatile, body 59d52451ceebffc02a194cce64dc3b27
function commandbus.require_open_load(p_load commandbus.command_bus_load) returns void
    plpgsql, volatile, body 86d9e72b0ad9ff9f15d31f0f9f618988
function commandbus.require_removal(p_move_id uuid) returns commandbus.command_bus_move
    plpgsql, volatile, body a383e736df7d167f871d1e82c59cbf09
function commandbus.require_ungoverned(p_domain text, p_types text[], p_on_behalf jsonb) returns text[]
    plpgsql, volatile, body 5cd459e7d9556bd1e060131970b225ee
function commandbus.require_ungoverned_edits(p_domain text, p_command_ids uuid[], p_on_behalf jsonb) returns void
    plpgsql, volatile, body 150b406cff658f43f2adafb3f2cf1dab
function commandbus.reschedule_commands(p_domain text, p_command_ids uuid[], p_deliver_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay_seconds double precision DEFAULT NULL::double precision, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set search_path=pg_catalog, pg_temp, body 15cf178b46c16408ebf769f6948a4d03
function commandbus.resume_bulk(p_operation_id uuid, p_actor text DEFAULT NULL::text, p_rate double precision DEFAULT NULL::double precision, p_reason text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body bc200f7b1287345f04f78b781ee10ab2
function commandbus.resume_domain(p_domain text, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 24407e6f4d69f3913527101c2bf915a3
function commandbus.resume_keys(p_domain text) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=on, set enable_bitmapscan=off, body f5b63368c35d018ffa570ed15c36e05b
function commandbus.resume_schedule(p_domain text, p_name text, p_version bigint, p_next timestamp with time zone, p_catch_up boolean, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 00aef1bd2e0d24db84fb080d4233ee72
function commandbus.resume_type(p_domain text, p_type text, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 44f5d5788a3d73048872ce38f0d21ac6
function commandbus.retention_behind(p_domain text DEFAULT NULL::text, p_look integer DEFAULT 1000) returns TABLE(domain text, kind text, oldest timestamp with time zone)
    plpgsql, stable, body fad1492fd5b6c61ea6455ad64b2a57ea
function commandbus.retention_due(p_domain text DEFAULT NULL::text) returns TABLE(domain text, kind text, before timestamp with time zone)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 86b55731a33ebc9b54f34068b41b7877
function commandbus.retry_batch(p_domain text, p_batch_id uuid, p_actor text DEFAULT NULL::text, p_limit integer DEFAULT 5000) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 1d210618b811f54cb599e6001376f09f
function commandbus.retry_batch_because(p_domain text, p_batch_id uuid, p_reason text, p_actor text DEFAULT NULL::text) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body d914953269d12f2357fc565edfb0a281
function commandbus.retry_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body cdf23b42235eeb2c871a1f100dec1646
function commandbus.retry_parked(p_domain text, p_command_ids uuid[], p_actor text, p_reset_attempts boolean, p_is_strict boolean, p_edits jsonb, p_bypass boolean) returns SETOF uuid
    plpgsql, volatile, body b603fbe1ee775313bd043e85110526f5
function commandbus.retry_ticket(p_domain text, p_ticket_id uuid, p_cap integer, p_actor text, p_reason text DEFAULT NULL::text) returns TABLE(retried integer[], exhausted integer[])
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ae33745da84e7a48ba4d02145b1afd95
function commandbus.review_children(p_domain text, p_batch_id uuid, p_only_edits boolean, p_after integer, p_limit integer) returns TABLE(sequence_no integer, command_id uuid, command_type text, status text, digest text, data text, is_edited boolean, edit_data text, edit_digest text, editor text, edited_at timestamp with time zone, edit_expires_at timestamp with time zone, edit_changes jsonb)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 105e4a802b300eff46caf219129d5982
function commandbus.revoke_api_token(p_token_id text, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns timestamp with time zone
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 41e6c3c9fe14f7437090e8fc229a1058
function commandbus.right_differences(p_prefix text) returns TABLE(role text, problem text, statement text)
    sql, stable, body 024aca42f12c2adf21f166b187f339eb
function commandbus.role_differences(p_prefix text DEFAULT NULL::text) returns TABLE(kind text, role text, problem text, statement text)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body e419a85b44cbb4549586fcd937215cfe
function commandbus.role_names(p_prefix text) returns TABLE(role text, name text, id oid)
    sql, stable, body 7ea03f7879cdaa80fa3034583869996f
function commandbus.room_at(p_domain text, p_gate text, p_now timestamp with time zone) returns integer
    plpgsql, stable, body 6cfcff3744a265f80c41d3826a0a9b6d
function commandbus.rotate_api_token(p_token_id text, p_new_id text, p_secret_hash bytea, p_overlap interval DEFAULT '00:00:00'::interval, p_actor text DEFAULT NULL::text) returns SETOF commandbus.command_bus_api_token
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 03e5a377a267060a3a8b9adef5737363
function commandbus.rule_changed(p_domain text, p_type text, p_by_key boolean, p_event text, p_details jsonb, p_actor text) returns void
    plpgsql, volatile, body 0dc67aae32c967da4172bf607f53469c
function commandbus.rule_details(p_rule commandbus.command_bus_flow_rule) returns jsonb
    sql, stable, body 96641d20eb34e60c69e5bce8cf28e66e
function commandbus.ruled_domains() returns SETOF text
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body d02b1bbe5dfb122979f9a2152d729788
function commandbus.run_bulk_chunk(p_operation_id uuid, p_limit integer DEFAULT 500, p_executor text DEFAULT NULL::text, p_edits jsonb DEFAULT NULL::jsonb) returns TABLE(status text, acted integer, wait_seconds double precision)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 7e9e4312d74ad84c5439836d43edec22
function commandbus.running_in_domain(p_domain text) returns bigint
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 3b0fd54b604db28ed060912943b21727
function commandbus.sample_domains(p_every interval DEFAULT '00:00:08'::interval) returns boolean
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 4703dfa0d9c98ee94a6347a46126c0e7
function commandbus.sample_groups(p_now timestamp with time zone) returns void
    plpgsql, volatile, body d6adf9bd0053a1452773c71f1ff72361
function commandbus.scale_metric(p_domain text, p_most integer DEFAULT 10000) returns bigint
    plpgsql, stable, security definer, set enable_seqscan=off, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body 968a3b0916a9e45d6702115c87b34e1c
function commandbus.schedule_data(p_domain text, p_names text[]) returns TABLE(name text, data jsonb)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 8675426cac2f8b5275fbf5ccedc86aeb
function commandbus.scheduled_command(p_schedule commandbus.command_bus_schedule, p_command_id uuid, p_tick timestamp with time zone) returns jsonb
    sql, stable, body c2012eaa16f1337b1b54b52c9978e795
function commandbus.scheduled_commands(p_domain text, p_command_type text, p_from_place timestamp with time zone, p_from_msg_id bigint, p_limit integer, p_scan integer DEFAULT 10000, p_viewer text DEFAULT NULL::text) returns TABLE(place timestamp with time zone, msg_id bigint, command commandbus.command_bus_command)
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 5c7ec95aa9fbd9217367d9ac727ed091
function commandbus.schema_id() returns oid
    sql, stable, body 0c10252a6bbebe392493c1d155437cfd
function commandbus.seal_load(p_domain text, p_batch_id uuid, p_rows integer DEFAULT NULL::integer, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 0b6765924a4e00487137047d4aedddba
function commandbus.seal_state(p_most integer DEFAULT 10000) returns TABLE(seal_number bigint, sealed_to bigint, sealed_at timestamp with time zone, key_id text, unsealed bigint, oldest_unsealed_at timestamp with time zone)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body c20d16b29ee499ccb3fbd685b1e1210c
function commandbus.seal_total(p_batch_id uuid, p_now timestamp with time zone, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, body 396101c1336a0b5145c37a370cc691c9
function commandbus.search_commands(p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_command_id uuid, p_error_code text, p_from_place timestamp with time zone, p_from_id uuid, p_limit integer, p_scan integer DEFAULT 100000, p_viewer text DEFAULT NULL::text) returns TABLE(place timestamp with time zone, command commandbus.command_bus_command)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body 8851fd9cbf404db739771969f409473d
function commandbus.search_few(p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_command_id uuid, p_error_code text, p_viewer text) returns TABLE(place timestamp with time zone, command commandbus.command_bus_command)
    plpgsql, stable, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, body 43cb2f3160c333be48431ee7e9b52434
function commandbus.search_history(p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_command_id uuid, p_error_code text, p_from_place timestamp with time zone, p_from_id uuid, p_limit integer, p_scan integer DEFAULT 100000, p_viewer text DEFAULT NULL::text) returns TABLE(place timestamp with time zone, command commandbus.command_bus_history)
    plpgsql, stable, security definer, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set search_path=pg_catalog, pg_temp, body 11b30f09608048c66fdafc01ebcca6c3
function commandbus.search_window(p_is_parked boolean, p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_created_after timestamp with time zone, p_created_before timestamp with time zone, p_error_code text, p_floor timestamp with time zone, p_upper timestamp with time zone, p_beyond_id uuid, p_limit integer, p_viewer text) returns TABLE(place timestamp with time zone, command commandbus.command_bus_command)
    plpgsql, stable, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, body 29666c0a959b25645b15c6dfbaed36c1
function commandbus.seconds_left_in_minute(p_at timestamp with time zone) returns integer
    sql, stable, body a765916b4f3113970ab6873975b8c908
function commandbus.sees_batch(p_viewer text, p_batch_id uuid) returns boolean
    plpgsql, stable, set enable_seqscan=off, body 179959746c3de9333d8f6b921a00654f
function commandbus.sees_commits() returns boolean
    sql, stable, body be9f58c5515fcf338da95d2965e28d20
function commandbus.sees_event(p_viewer text, p_event commandbus.command_bus_audit) returns boolean
    plpgsql, stable, body 4175fc8ceef23193488c102a4814abc0
function commandbus.send_by_keys(p_domain text, p_commands jsonb, p_batch_id uuid, p_actor text) returns integer
    plpgsql, volatile, body fa537d64abd976dc6feada848573db31
function commandbus.send_command(p_domain text, p_command_type text, p_command_id uuid, p_data jsonb DEFAULT '{}'::jsonb, p_reply_to text DEFAULT NULL::text, p_correlation_id uuid DEFAULT NULL::uuid, p_delay interval DEFAULT NULL::interval, p_deliver_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_priority integer DEFAULT NULL::integer, p_ordering_key text DEFAULT NULL::text, p_limit_key text DEFAULT NULL::text, p_meta jsonb DEFAULT NULL::jsonb) returns uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body da7546fd903133cad7e011d3df96c0a2
function commandbus.send_commands(p_domain text, p_commands jsonb, p_batch_id uuid DEFAULT NULL::uuid, p_actor text DEFAULT NULL::text) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 1b32e93678735d7141fe85628f191858
function commandbus.send_for(p_domain text, p_command jsonb, p_digests bytea[], p_on_behalf jsonb) returns TABLE(verdict text, status text)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body c164c48736f2ec7ec72e03c1b7432685
function commandbus.send_packed(p_domain text, p_ids text, p_types text, p_replies text, p_relations text, p_limits text, p_messages text, p_batch_id uuid DEFAULT NULL::uuid, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 9649b70504a1c7c53f60e8d56254ba77
function commandbus.send_ticks(p_domain text, p_commands jsonb) returns void
    plpgsql, volatile, body ba5e7cdbd0790f5a7aa6eea08cf1b04b
function commandbus.send_unique(p_domain text, p_command_type text, p_command_id uuid, p_data jsonb, p_unique_key text, p_unique_while text DEFAULT 'open'::text, p_on_duplicate text DEFAULT 'skip'::text, p_delay interval DEFAULT NULL::interval, p_max_wait interval DEFAULT NULL::interval, p_meta jsonb DEFAULT NULL::jsonb) returns uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 7d06720bb303ca4bcf11d123c337da70
function commandbus.send_unique_for(p_domain text, p_command jsonb, p_digests bytea[], p_on_behalf jsonb) returns TABLE(verdict text, status text, command_id uuid)
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 72b7a4e9646e9e8d24ae6be533eb89a8
function commandbus.sent_as(p_domain text, p_command_id uuid) returns TABLE(status text, sent_by text, digest bytea)
    plpgsql, volatile, body a4524dd90203e3f4fee6bdcbd5a3510d
function commandbus.sent_before(p_domain text, p_command_id uuid, p_digests bytea[], p_user text) returns TABLE(verdict text, status text)
    sql, volatile, body b380e77349346322c8d5305449290374
function commandbus.sent_keys(p_sends jsonb) returns TABLE(domain text, keys text[])
    sql, stable, body 32c18488431e75b7342ad78ee5e8baf8
function commandbus.set_exemption(p_user text, p_actor text, p_reason text, p_expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone) returns timestamp with time zone
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 6dcb4d1a672ff6d95aeea767779f78d3
function commandbus.set_key_policy(p_domain text, p_on_park text, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body b22502077715483c5d774448fb7a50ca
function commandbus.set_level_seconds(p_domain text, p_seconds double precision, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ab433939c10592ad38b0d1abd633090d
function commandbus.set_limit(p_domain text, p_type text DEFAULT NULL::text, p_by_key boolean DEFAULT false, p_max_running integer DEFAULT NULL::integer, p_rate double precision DEFAULT NULL::double precision, p_per double precision DEFAULT NULL::double precision, p_burst double precision DEFAULT NULL::double precision, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 217bf1d429cf5731c4b41536d9d8219b
function commandbus.set_priority(p_domain text, p_command_ids uuid[], p_priority integer, p_actor text DEFAULT NULL::text, p_is_strict boolean DEFAULT true) returns SETOF uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body a035fd5dde4ab2da29b616ad60830180
function commandbus.set_retention(p_domain text, p_kind text, p_keep interval, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 56f225ca583be0b287c9afa4707c2995
function commandbus.set_user_limits(p_user text, p_actor text, p_max_pending_batches integer DEFAULT NULL::integer, p_max_pending_children integer DEFAULT NULL::integer, p_cooldown_seconds integer DEFAULT NULL::integer) returns SETOF commandbus.rate_limit_override
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 659b3fc639297acc8a9182578c59a7d7
function commandbus.setting(p_name text) returns text
    sql, stable, body 6b5ae6ea4d2b689cf6c3c498a70e2bec
function commandbus.settle_commands(p_domain text, p_outcomes jsonb, p_is_own boolean DEFAULT false) returns SETOF uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body bb3c1180ec28f5c1b1112144a20040ee
function commandbus.settle_own(p_domain text, p_outcomes jsonb) returns SETOF uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body d4e86bd933650ca072f4712d7b137bb8
function commandbus.settled_audit() returns bigint
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body f9aaa67b2d3d48e42a265e6bf05185ef
function commandbus.shard_of(p_map commandbus.command_bus_shard, p_domain text) returns text
    sql, immutable, body 1ecbc8f06d272932de2a2325bb5cd94e
function commandbus.share_gate(p_command_ids uuid[], p_gate text, p_is_open boolean, p_room integer, p_tokens double precision, p_places integer, OUT o_stop text[], OUT o_at text[], OUT o_by uuid[], OUT o_tokens double precision[], OUT o_given integer, OUT o_is_short boolean) returns record
    plpgsql, immutable, body 926e69cf3af50a9b5c8fa945825d02a7
function commandbus.share_gates(p_command_ids uuid[], p_gates_of text[], p_had jsonb[], p_gates text[], p_open boolean[], p_room integer[], p_tokens double precision[], p_queued boolean[], p_kept boolean[], p_places integer, OUT o_stop text[], OUT o_at text[], OUT o_by uuid[], OUT o_tokens double precision[], OUT o_given integer, OUT o_is_short boolean) returns record
    plpgsql, immutable, body a73ed5afbf0b01a1be147dad5e7435e9
function commandbus.show_key(p_domain text, p_key text, p_viewer text DEFAULT NULL::text, p_limit integer DEFAULT 100) returns TABLE(place bigint, command_id uuid, command_type text, status text, number bigint, since timestamp with time zone, is_blocking boolean)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body f9519c768d27e132263e635a0526477b
function commandbus.skip_key(p_domain text, p_key text, p_actor text DEFAULT NULL::text, p_reason text DEFAULT NULL::text, p_expected uuid DEFAULT NULL::uuid) returns uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 89a922b09c418855196d0f7117b2c25a
function commandbus.slot_rows(p_domain text, p_command_ids uuid[]) returns tid[]
    plpgsql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body 0b1d8e7228e6a03075f3e103c32a8194
function commandbus.snooze_commands(p_domain text, p_items jsonb) returns SETOF uuid
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 653919e121f5555eee8255a3a223be4c
function commandbus.start_bulk(p_operation_id uuid, p_domain text, p_verb text, p_filter jsonb DEFAULT '{}'::jsonb, p_arguments jsonb DEFAULT '{}'::jsonb, p_rate double precision DEFAULT NULL::double precision, p_actor text DEFAULT NULL::text, p_everything boolean DEFAULT false, p_expected_total bigint DEFAULT NULL::bigint, p_limit integer DEFAULT NULL::integer, p_start_after interval DEFAULT NULL::interval) returns uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body ebd3841975ec9758c2a4ab4a156c60eb
function commandbus.start_bulk_for(p_operation_id uuid, p_domain text, p_verb text, p_filter jsonb, p_arguments jsonb, p_rate double precision, p_everything boolean, p_expected_total bigint, p_on_behalf jsonb, p_limit integer DEFAULT NULL::integer, p_start_after interval DEFAULT NULL::interval) returns uuid
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 5da7061de7ac0aff35aa9865711f6fdd
function commandbus.still_out(p_domain text, p_command_ids uuid[], p_leases bigint[]) returns TABLE(command_id uuid, lease_epoch bigint)
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set search_path=pg_catalog, pg_temp, body c2fa0de543e21be8abf5af6b7c355dcd
function commandbus.still_parked(p_domain text, p_command_ids uuid[], p_parked timestamp with time zone[]) returns uuid[]
    sql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set enable_indexonlyscan=off, body 7b3ff768be39f90704b2b16eb24ca7e5
function commandbus.stop_bulk(p_operation_id uuid, p_actor text DEFAULT NULL::text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 48e1bfd547cece4f81a234f871d11a07
function commandbus.store_commands(p_domain text, p_commands jsonb, p_batch_id uuid, p_dispatch_status text, p_sequence_start integer DEFAULT NULL::integer, p_actor text DEFAULT NULL::text) returns uuid[]
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 2f1141936e771fa24ad789203fed49a7
function commandbus.stored_messages(p_domain text, p_command_ids uuid[]) returns TABLE(command_id uuid, message text)
    sql, stable, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, set plan_cache_mode=force_generic_plan, set search_path=pg_catalog, pg_temp, body 3b3890c9863f49510952038d6ef6885c
function commandbus.sweep_progress(p_limit integer DEFAULT 10000) returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 632022549f719a8639a2c49920b8279a
function commandbus.tables_with_ice(p_domain text) returns SETOF regclass
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body f64ed6ba4fab7b59e639b0890e9c7e10
function commandbus.take_back(p_domain text, p_msg_ids bigint[], p_command_ids uuid[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 4647c35d74958cf414eacae29f6c2404
function commandbus.take_gated(p_flow commandbus.command_bus_flow, p_now timestamp with time zone, p_vt integer, p_quantity integer, p_from_head boolean, p_except text[], p_places integer, OUT o_msg_ids bigint[], OUT o_messages jsonb[]) returns record
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body 1c5829428f3c07a5f359f206d316f9aa
function commandbus.take_inbox_reply(p_domain text, p_command_id uuid) returns text
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 09a5d0801c6dc8ffe44edefbf2ca08a8
function commandbus.take_levels(p_flow commandbus.command_bus_flow, p_now timestamp with time zone, p_vt integer, p_quantity integer, p_from_head boolean, p_except text[], OUT o_msg_ids bigint[], OUT o_messages jsonb[]) returns record
    plpgsql, volatile, set enable_indexscan=on, body 47a797d2dd26be8f8cb12455f6daf8ea
function commandbus.take_messages(p_queue text, p_now timestamp with time zone, p_vt integer, p_quantity integer, p_from_head boolean, p_except text[], OUT msg_ids bigint[], OUT messages jsonb[]) returns record
    plpgsql, volatile, body f7a34025fa426662cb62e040fa11e5f2
function commandbus.take_numbers(p_domain text, p_keys text[]) returns bigint[]
    plpgsql, volatile, body 322eb46cdafbf68f8cfd76c9d369f464
function commandbus.take_places(p_domain text, p_now timestamp with time zone, p_msg_ids bigint[], p_command_ids uuid[], p_places integer, p_has_waited boolean, OUT o_admitted bigint[], OUT o_stopped bigint[], OUT o_given integer, OUT o_is_short boolean) returns record
    plpgsql, volatile, body 75cf0471c7ca3b12318aba39196323b3
function commandbus.tend_archives(p_domain text DEFAULT NULL::text, p_after text DEFAULT NULL::text, p_kinds text[] DEFAULT NULL::text[], OUT o_did text, OUT o_archive text, OUT o_domain text, OUT o_kind text, OUT o_gone bigint, OUT o_before timestamp with time zone) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 71b7453150f56df2701600762c6dd0c7
function commandbus.tend_audit(p_actor text DEFAULT NULL::text, OUT o_did text, OUT o_events bigint, OUT o_before timestamp with time zone) returns record
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 51615663d8e24602ed5486cbce9f6caf
function commandbus.tend_gates(p_domain text, p_limit integer DEFAULT 1000) returns integer
    plpgsql, volatile, security definer, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, set search_path=pg_catalog, pg_temp, body 19c98db5ffb55c61686d6cf2c48521bf
function commandbus.tend_levels() returns integer
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 0f48403b463a8c415e779ea05a867b61
function commandbus.tended_archives(p_domain text DEFAULT NULL::text) returns TABLE(physical text, domain text, kind text, archive regclass, queue regclass, sequence regclass, is_divided boolean)
    sql, stable, body 7672aa30d4871e89d82cdba7c8e3b0b9
function commandbus.thaw_table(p_domain text, p_relation regclass) returns void
    plpgsql, volatile, security definer, set lock_timeout=2s, set search_path=pg_catalog, pg_temp, body 8e5afec16f8c0ea3f8b5477b7fac4c03
function commandbus.ticket_kinds(p_owner text, p_domains text[], p_batch_types text[]) returns TABLE(domain text, batch_type text)
    plpgsql, stable, set plan_cache_mode=force_custom_plan, set enable_seqscan=off, set enable_bitmapscan=off, set enable_sort=off, set enable_incremental_sort=off, body d500443ddf1e3a9233071b5e1d4d3632
function commandbus.ticket_status(p_batch commandbus.command_bus_batch) returns text
    sql, immutable, body d41d8cd98f00b204e9800998ecf8427e
function commandbus.time_problem(p_command commandbus.command_bus_command, p_due timestamp with time zone, p_is_later boolean) returns text
    sql, volatile, body 9f82b786e178e46c973a17ececf1c2ac
function commandbus.tokens_at(p_now timestamp with time zone, p_tokens double precision, p_refilled_at timestamp with time zone, p_per_second double precision, p_burst double precision) returns double precision
    sql, immutable, body 562208bde74e9ab75b481818a04e79b2
function commandbus.touch_api_token(p_token_id text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 3fef0d75ad7a8e29de390a6fdc339c25
function commandbus.touch_check(p_run_id bigint) returns void
    sql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 2095a8e1857f621ed96a9781495ae11d
function commandbus.trigger_schedule(p_domain text, p_name text, p_command_id uuid, p_actor text DEFAULT NULL::text, p_on_behalf jsonb DEFAULT NULL::jsonb, p_reason text DEFAULT NULL::text) returns text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 6438f0e01c8a01024bd6405510690121
function commandbus.try_bulk(p_domain text, p_verb text, p_arguments jsonb, p_actor text, p_command_ids uuid[], p_edits jsonb, OUT o_done uuid[], OUT o_errors jsonb) returns record
    plpgsql, volatile, body 50c4ccd3e0f51ba5acdd9ecd872db07d
function commandbus.try_queue(p_domain text, p_command_ids uuid[], p_max_attempts integer, OUT o_queued integer, OUT o_failed integer, OUT o_given_up integer) returns record
    plpgsql, volatile, body 6b98b80d7944c5afd4bff95a544db2e7
function commandbus.turn_away(p_domain text, p_msg_ids bigint[], p_command_ids uuid[], p_worker text, p_limits jsonb, p_now timestamp with time zone) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 36e072b6facd1d04c699f6feca94d72b
function commandbus.turn_of(p_command commandbus.command_bus_command, p_level_seconds double precision) returns bigint
    sql, stable, body 0caacaf5c7d76dda3080a22339acd8bd
function commandbus.undecided_children(p_domain text, p_ticket_id uuid) returns uuid[]
    sql, stable, body e51d6df894e952feb235881b33aaa38c
function commandbus.unique_holders(p_domain text, p_keys text[], p_now timestamp with time zone) returns TABLE(unique_key text, command_id uuid, holds_while text, holds boolean)
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body d9587c3191be51787775abb8485a3e20
function commandbus.unpack_commands(p_domain text, p_commands jsonb, p_now timestamp with time zone) returns TABLE(n bigint, command_id uuid, type text, reply_to text, correlation_id uuid, max_attempts integer, message jsonb, has_flow boolean, deliver_at timestamp with time zone, expires_at timestamp with time zone, priority smallint, ordering_key text, limit_key text)
    sql, stable, body 693c1b906af43317eba63b50c8ec3e76
function commandbus.use_console_code(p_secret_hash bytea) returns text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body 1b668b43c16026b5f73b709eba1cfe0b
function commandbus.use_console_session(p_secret_hash bytea, p_idle interval, p_is_used boolean) returns SETOF commandbus.command_bus_console_session
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body a06f8519cb94d4696ee3a19013fa7355
function commandbus.use_keys(p_domain text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body f5171bed493c645a91fe61159ea24c05
function commandbus.use_levels(p_domain text, p_within interval DEFAULT '00:20:00'::interval) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body bd15c903fce3893893ff619a8f2d843f
function commandbus.visible_batch(p_viewer text, p_batch_id uuid) returns boolean
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 153b781b6f5b6779e77a76bd61f1ec97
function commandbus.wait_at_gates(p_domain text, p_msg_ids bigint[], p_command_ids uuid[], p_stop text[], p_leased boolean[], p_has_waited boolean, p_full text[]) returns void
    plpgsql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_indexscan=off, set enable_bitmapscan=on, body 3b07cbd7d57f62f6a7891b19c6452633
function commandbus.waiting_commands(p_domain text, p_command_type text, p_from_gate text, p_from_seq bigint, p_from_msg_id bigint, p_limit integer, p_viewer text DEFAULT NULL::text) returns TABLE(gate text, seq bigint, msg_id bigint, command commandbus.command_bus_command)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 042cda95f999da0ba683e220e4a87e91
function commandbus.waiting_edits(p_ticket_ids uuid[]) returns TABLE(ticket_id uuid, sequence_no integer, domain text, command_id uuid, command_type text, batch_type text, editor text, digest text, data text)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 255c055c0e3c08c42e22b5555c217061
function commandbus.waiting_ids(p_domain text, p_command_ids uuid[]) returns uuid[]
    sql, volatile, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, body 313fb4a218ce6e557a5fcb6319b193e5
function commandbus.waiting_page(p_domain text, p_after jsonb, p_limit integer) returns TABLE(n bigint, command_id uuid, batch_id uuid, created_at timestamp with time zone, sequence_no integer, is_retry boolean, updated_at timestamp with time zone)
    plpgsql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body 882dc7e19b365107497610011f5304eb
function commandbus.waiting_rows(p_domain text, p_command_ids uuid[]) returns tid[]
    plpgsql, stable, set enable_seqscan=off, set enable_hashjoin=off, set enable_mergejoin=off, set enable_sort=off, set enable_incremental_sort=off, set enable_indexscan=on, set enable_bitmapscan=off, body 10c4b861d2d2a89caa733b6dc0acff8b
function commandbus.waiting_text(p_domain text, p_command_id uuid) returns text
    plpgsql, stable, security definer, set search_path=pg_catalog, pg_temp, body 514e21442db9ab74e4d1d9905e3806e0
function commandbus.wake_for_places(p_domain text) returns void
    plpgsql, volatile, body 84487bbad3d9787b4833892ad210631a
function commandbus.wake_workers(p_domain text) returns void
    plpgsql, volatile, body 41ba682ae800da5a414b0ee0dee6cc39
function commandbus.walk_gates(p_domain text, p_after text, p_before text, p_limit integer) returns text[]
    plpgsql, volatile, body 5d7b5bb58ec11573f7b69fe4ff6b9c81
function commandbus.watch_expiry(p_domain text, p_command_ids uuid[], p_expires timestamp with time zone[]) returns void
    sql, volatile, body 784c7f1edeb5820f8466e566256dd2e2
function commandbus.what_is_left(p_domain text, p_include_delayed boolean) returns text
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body f3e837a55ce569207f9596980e7e6b52
function commandbus.worker_activity(p_domain text DEFAULT NULL::text, p_most integer DEFAULT 500) returns TABLE(worker_id text, domain text, concurrency integer, in_flight integer, stuck integer, is_idle boolean, heartbeat_seconds double precision, up_seconds double precision)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 01d3bde91f59b9a24b59d6e115fcac68
function commandbus.worker_counts(p_limit integer DEFAULT 10000) returns TABLE(domain text, command_type text, outcome text, count bigint, seconds double precision)
    sql, stable, security definer, set search_path=pg_catalog, pg_temp, body 0dbf4507164ccbefc5d4ff8beca2b396
function commandbus.worker_gone(p_worker text) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body a9b71245f758d2bc49bebf190d5da5c6
function commandbus.worker_heartbeat(p_worker text, p_domain text, p_is_idle boolean, p_concurrency integer, p_in_flight integer, p_stuck integer DEFAULT 0, p_more jsonb DEFAULT '{}'::jsonb) returns void
    plpgsql, volatile, security definer, set search_path=pg_catalog, pg_temp, body d587505c5723131edf9cf48f6684ceab
function commandbus.write_decision(p_batch commandbus.command_bus_batch, p_decision text, p_user text, p_reason text, p_now timestamp with time zone, p_event text) returns void
    plpgsql, volatile, body fe101331d6bc8b3f1696e94cb0cc6d12

migration 1 = initial
migration 10 = approval_of_content
migration 11 = visibility
migration 12 = nothing_for_everybody
migration 13 = audit_seals
migration 14 = flow
migration 15 = cancel_and_progress
migration 16 = schedules
migration 17 = unique
migration 18 = levels
migration 19 = execution_limits
migration 2 = governance
migration 20 = keys
migration 21 = meta
migration 22 = reads_of_operators
migration 23 = decisions
migration 24 = console_sessions
migration 25 = worker_counts
migration 26 = shards
migration 27 = lapsed_and_waiting
migration 28 = told
migration 29 = moves
migration 3 = api_tokens
migration 30 = audit_parts
migration 31 = archive_parts
migration 32 = history
migration 4 = troubleshooting_key
migration 5 = queue_names
migration 6 = stuck_workers
migration 7 = canceled_loads
migration 8 = unconfirmed
migration 9 = governed_types
setting archive_part_rows = 250000
setting audit_part_rows = 1000000
setting command_id_scope = domain
setting history_part_rows = 1000000
setting payload_archive = off
