-- 0018: priority. What is due is found along two indexes, and each message is in exactly one of them: those
-- without a level, which are nearly all, in the order of their time, and the others by level and time. The
-- expression uses built-in functions only: PGMQ's own senders need no right of ours.
--
-- Each index is built while its queue is locked against writing. A queue holds what waits, not what has ended.
do $$
declare
    v_physical text;
begin
    for v_physical in
        select m.queue_name from pgmq.meta m
         where m.queue_name ~ ('^' || commandbus.queue_mark() || '[a-z].*__commands$')
           and exists (select from pg_class t
                        where t.oid = to_regclass('pgmq.' || quote_ident('q_' || m.queue_name))
                          and t.reloptions && array['autovacuum_vacuum_threshold=1000', 'fillfactor=50',
                                                    'autovacuum_vacuum_scale_factor=0.01'])
         order by 1
    loop
        execute format('drop index if exists pgmq.%I', 'q_' || v_physical || '_vt_idx');
        execute format('create index %I on pgmq.%I (vt, msg_id) where headers is null',
                       'q_' || v_physical || '_vt_idx', 'q_' || v_physical);
        execute format('create index if not exists %I on pgmq.%I ((headers ->> ''priority''), vt, msg_id)'
                       ' where headers is not null', 'q_' || v_physical || '_level_idx', 'q_' || v_physical);
    end loop;
end $$;
