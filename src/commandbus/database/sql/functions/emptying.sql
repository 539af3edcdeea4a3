-- Emptying: when a worker ends that runs until its queue is empty.

-- What such a worker has to wait for. 'paused': nothing is leased here before somebody resumes the domain, or its
-- pause is over. 'due': a message that could be leased now, or one that waits at a limit and gets its place or its
-- token by itself. 'delayed', only if asked for: a command that becomes due later and that no worker has. null: nothing.
-- What others have leased is theirs, and what waits without a time otherwise (behind its key, at a full limit)
-- becomes due by the end of another command.
create or replace function commandbus.what_is_left(p_domain text, p_include_delayed boolean) returns text
language plpgsql as $$
declare
    v_table text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
    v_now   timestamptz := clock_timestamp();
    v_found boolean;
begin
    if exists (select from commandbus.command_bus_flow f
                where f.domain = p_domain and f.paused_at is not null
                  and coalesce(f.paused_until > v_now, true)) then
        return 'paused';
    end if;
    execute format('select exists (select from pgmq.%I q where q.vt <= $1)', v_table)
       into v_found using v_now;
    if v_found or exists (select from commandbus.command_bus_flow f where f.domain = p_domain and f.has_rules)
                  and commandbus.gates_due(p_domain, v_now) is not null then
        return 'due';
    end if;
    if p_include_delayed then
        execute format(
            'select exists ('
            '    select from pgmq.%I q'
            '      join commandbus.command_bus_command c'
            '        on c.domain = $2 and c.command_id = commandbus.message_command_id(q.message)'
            '     where q.vt > $1 and q.vt < ''infinity'' and c.msg_id = q.msg_id'
            '       and c.status = ''PENDING'' and c.leased_by is null)', v_table)
           into v_found using v_now, p_domain;
        if v_found then
            return 'delayed';
        end if;
    end if;
    return null;
end $$;
