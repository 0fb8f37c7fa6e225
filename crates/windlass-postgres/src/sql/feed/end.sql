-- The largest sequence that was given out.
select case when s.is_called then s.last_value else 0 end from windlass.feed_sequence_seq s
