-- How long an ended job is kept where its transition does not say, in microseconds: as long as it asks itself, else
-- core's DEFAULT_RETENTION.
-- What a spec says that is no count of milliseconds is not heeded: everyone's jobs are looked at by this, and
-- one of them must not keep the others from ending.
create or replace function windlass.keep_of(p_spec json) returns bigint language sql immutable as
$$ select case when k.ms ~ '^[0-9]{1,20}$' then (least(k.ms::numeric, 3e12) * 1000)::bigint else 1209600000000 end
   from (select windlass.json_text(p_spec, 'retention') as ms) k $$;

-- When a job expires that has not started by then; null where it does not say, and where nobody can read it.
create or replace function windlass.expiry_of(p_spec json) returns timestamptz language plpgsql stable as $$
#variable_conflict use_column
begin
    return windlass.json_text(p_spec, 'expires_at')::timestamptz;
exception when data_exception then
    return null;
end $$;

-- The step to which the end of p_keep microseconds is rounded: at most 1/32 of it.
create or replace function windlass.step_of(p_keep bigint) returns interval language sql immutable as
$$ select case when p_keep >= 2764800000000 then interval '24 hours' when p_keep >= 691200000000 then interval '6 hours'
               when p_keep >= 115200000000 then interval '1 hour' when p_keep >= 19200000000 then interval '10 minutes'
               when p_keep >= 1920000000 then interval '1 minute' when p_keep >= 320000000 then interval '10 seconds'
               when p_keep >= 32000000 then interval '1 second' when p_keep >= 3200000 then interval '100 ms'
               when p_keep >= 320000 then interval '10 ms' else interval '1 ms' end $$;

-- When a job that ends now and is kept for p_keep microseconds is gone: rounded up, so that many are gone at one time
-- and are counted by it.
create or replace function windlass.gone_at(p_now timestamptz, p_keep bigint) returns timestamptz language sql stable as
$$ select case when p_keep < 32000 then p_now + p_keep * interval '1 microsecond'
               else date_bin(windlass.step_of(p_keep), p_now + (p_keep - 1) * interval '1 microsecond', 'epoch')
                    + windlass.step_of(p_keep) end $$;
