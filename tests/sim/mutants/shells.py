"""Mutants of the shells of broker and client, which only whole processes can show."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

# fmt: off
NEWS_IS_LATE: Final[Mutant] = mutant(
    # Each answer comes after the metadata that it rests on. So a broker whose registration is
    # answered knows of it, and that its earlier life leads nothing: what guards against a broker
    # that does not know is never needed, unless this is left out, too.
    "a broker follows news a moment after the answers that rest on it",
    "P37",
    "millrace.broker.controller.channel:ControllerChannel._on_metadata",
    """    image = self._cache.image
    if image is not None and image is not self._image:
        self._image = image
        for told in self._image_callbacks:
            told(image)
""",
    """    def follow():
        image = self._cache.image
        if image is not None and image is not self._image:
            self._image = image
            for told in self._image_callbacks:
                told(image)
    follow() if update.is_full else asyncio.get_running_loop().call_later(0.3, follow)
""",
)
# fmt: on
"""No mutant of its own: see who is left out with it."""

# fmt: off
MUTANTS = (
    mutant("a flush is told of and not done", "P13",
           "millrace.broker.replica.appender:Appender._flush_one",
           "flushed_offset = log.flusher.flush()",
           "flushed_offset = log.log_end_offset"),
    mutant("all replicas are asked for, and only the leader is waited for", "P15",
           "millrace.broker.rpc.appends:Appends.append",
           "acks = Acks.ALL if terms.acks < 0 else Acks.LEADER", "acks = Acks.LEADER"),
    mutant("readers are served what is not committed", "P10",
           "millrace.core.replica.fetch.session_reader:SessionReader._readable_end",
           "return replica.last_stable_offset if self.read_committed else replica.high_watermark",
           "return replica.role.written_offset"),
    mutant("a coordinator answers before the commit", "P55",
           "millrace.broker.coordinator.coordinators:_Ready._committed",
           "if self._partition.replica.high_watermark >= offset:", "if offset >= 0:"),
    mutant("answers are taken for those of other batches", "P42",
           "millrace.client._producer.produce_stream:ProduceStream._answer",
           "answers = [_answer_of(result) for result in response.results]",
           "answers = [_answer_of(result) for result in reversed(response.results)]"),
    mutant("a producer does not hear that its stream broke", "P43",
           "millrace.client._cluster.broker_streams:BrokerStreams.on_broken",
           "self._machine.on_disconnected(broker_id, reason, monotonic_now())", "pass"),
    # --- Broker: requests ------------------------------------------------------------------
    mutant("a batch is appended though its request was answered", "P16",
           "millrace.broker.rpc.appends:Appends._judge_later",
           "elif not request.is_answered:", "else:"),
    mutant("the answer names the wrong batch of a request", "P42",
           "millrace.broker.rpc.produce:_ProduceStream._answer",
           "request.topic_partitions, outcomes, request.log_start_offsets, strict=True",
           "request.topic_partitions, reversed(outcomes), request.log_start_offsets"),
    mutant("a follower hears of what is committed, and not of what is written", "P9",
           "millrace.broker.rpc.fetch_sessions:FetchStream._follow",
           "to_log_end=reader.follower is not None", "to_log_end=False"),
    mutant("readers are told that all that is written is committed", "P5",
           "millrace.broker.rpc.fetch_plans:Plan.tell",
           "high_watermark, last_stable_offset, log_start_offset,",
           "log.log_end_offset, last_stable_offset, log_start_offset,"),
    mutant("news that come while the disk is read are forgotten", "P9",
           "millrace.broker.rpc.fetch_sessions:FetchStream._plan",
           "if plan.is_empty and not reader.has_news(position, partition.replica, partition.log):",
           "if plan.is_empty or not reader.has_news(position, partition.replica, partition.log):"),
    mutant("a look-up that waits does not hear that the log grows", "P10",
           "millrace.broker.rpc.offset_lookups:_Wait.on_advanced",
           "if end != query.latest_after:", "if end < query.latest_after:"),
    mutant("a look-up tells where the log ends, committed or not", "P10",
           "millrace.broker.rpc.offset_lookups:OffsetLookups._list_offset",
           "end = leader.last_stable_offset if read_committed else leader.high_watermark",
           "end = log.log_end_offset"),
    # --- Broker: threads and disks -----------------------------------------------------------
    mutant("appends after a failed one are written all the same", "P64",
           "millrace.broker.replica.appender:Appender._round",
           "if generation != target.generation_written:", "if False:"),
    mutant("the loop appends what is to be flushed before it is acknowledged", "P13",
           "millrace.broker.replica.appender:Appender._append_cached",
           "or target.is_flushed_before_ack", "or False",
           "self._report(target, Written(target.log.log_end_offset))",
           "self._report(target, Flushed(target.log.log_end_offset))"),
    mutant("a directory whose flush failed takes appends", "P63",
           "millrace.broker.replica.appender:Appender._on_refused",
           "self.fail(error)", "pass"),
    mutant("a broker with a bad disk leads as gladly as any other", "P25",
           "millrace.broker.upkeep.reluctance:ReluctanceWatch.run",
           "self._of_disks = next(filter(None, sorted(reasons)), Reluctance.NONE)", "pass"),
    # --- Broker: coordinators ----------------------------------------------------------------
    mutant("a coordinator forgets what it appends", "P55",
           "millrace.broker.coordinator.coordinators:_Ready._append",
           "self.machine.replay(record, Offset(offset))", "pass"),
    mutant("a coordinator serves on when it does not lead any more", "P55",
           "millrace.broker.coordinator.coordinators:_Shard.on_advanced",
           "if epoch != self._epoch:", "if self._epoch is None and epoch is not None:"),
    mutant("requests whose commit is not known are answered as done", "P60",
           "millrace.broker.coordinator.coordinators:_Ready.fail",
           "done.set_exception(maybe)", "done.set_result(None)"),
    mutant("a coordinator serves before it has read its log to the end", "P55",
           "millrace.broker.coordinator.coordinators:_Shard._read",
           "end = log.log_end_offset", "end = log.log_start_offset"),
    # --- Broker: peers -----------------------------------------------------------------------
    mutant("a follower does not hear that its stream broke", "P7",
           "millrace.broker.replica.fetcher:_LeaderStream.run",
           "partitions.replicas.on_session_broken(self._leader, monotonic_now())", "[]"),
    mutant("requests to a controller whose session broke wait for ever", "P40",
           "millrace.broker.controller.channel:ControllerChannel._hold_session",
           "if not answer.done():", "if False:"),
    # --- Clients -----------------------------------------------------------------------------
    mutant("offsets are taken for those of other partitions", "P10",
           "millrace.client._cluster.offsets:_ask_each_once",
           "wire.paired(places, answers):", "wire.paired(places, list(reversed(answers))):"),
    mutant("records before the position are handed out", "P7",
           "millrace.client._consumer.handing_out:HandingOut._open",
           "if not is_first_wanted:", "if False:"),
    mutant("a paused partition hands out what is left of a poll", "P7",
           "millrace.client._consumer.reading:ConsumerCore.pause",
           "self.handing_out.rewind(place, rest)", "pass"),
    mutant("the position is beyond what is left of a poll", "P7",
           "millrace.client._consumer.reading:ConsumerCore.position",
           "if rest is not None:", "if False:"),
    mutant("a seek keeps what is left of a poll", "P7",
           "millrace.client._consumer.reading:ConsumerCore.seek_partition",
           "self.handing_out.drop_rest_of([place])", "pass"),
    mutant("a consumer does not show which epoch it has read", "P4",
           "millrace.client._consumer.fetch_stream:FetchStream.change",
           "last_fetched_epoch=added.last_fetched_epoch", "last_fetched_epoch=-1"),
    mutant("a consumer does not hear that its log and the leader's part", "P4",
           "millrace.client._consumer.fetch_stream:_news",
           """if fetched.HasField("diverging"):""", "if False:"),
    mutant("a consumer does not hear that its stream broke", "P7",
           "millrace.client._cluster.broker_streams:BrokerStream._break",
           "self._on_broken(self.broker_id, self, str(reason))", "pass"),
    mutant("a call that broke off counts as not done", "P16",
           "millrace.client._cluster.calls:Calls.call",
           "in_doubt = True", "pass"),
    mutant("nobody follows a refusal to the broker that keeps the positions", "P60",
           "millrace.client._cluster.coordinators:Coordinators._learn",
           "self._keepers[key] = named", "pass"),
)
# fmt: on
