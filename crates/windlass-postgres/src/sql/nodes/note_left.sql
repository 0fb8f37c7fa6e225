-- The handlers that a node has said it has: what may be the name of one.
create or replace function windlass.handlers_of(p_info json) returns setof text language sql immutable as
$$ select h.name from json_array_elements_text(
       case when windlass.json_text(p_info, 'handlers') is null or json_typeof(p_info -> 'handlers') <> 'array' then '[]'
            else p_info -> 'handlers' end) h(name)
   where octet_length(h.name) between 1 and 200 $$;

-- Notes that the handlers of nodes that are gone were served until then.
create or replace function windlass.note_left(p_infos json[], p_ats timestamptz[]) returns void language sql as
$$ insert into windlass.served as s (name, at)
   select h.name, max(u.at) from unnest(p_infos, p_ats) u(info, at) cross join windlass.handlers_of(u.info) h(name)
   group by h.name order by h.name
   on conflict (name) do update set at = greatest(s.at, excluded.at) $$;
