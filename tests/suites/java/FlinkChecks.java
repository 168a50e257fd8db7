import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.IntStream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** What the documentation of Flink's connector shows, each job in a cluster within this process. */
final class FlinkChecks {
    private static final int PARTITIONS = 2;
    private static final int COUNT = 400;
    private static final int PART = COUNT / 8;

    private FlinkChecks() {}

    static void boundedRead(Checks.Bench bench) throws Exception {
        String topic = bench.create("in", PARTITIONS);
        write(bench, topic, 0, COUNT);
        StreamExecutionEnvironment job = job(bench, null);
        List<String> found = new ArrayList<>();
        job.fromSource(source(bench, topic).setBounded(OffsetsInitializer.latest()).build(),
            WatermarkStrategy.noWatermarks(), "in").executeAndCollect().forEachRemaining(found::add);
        Checks.expect(sorted(found), values(COUNT));
    }

    static void atLeastOnce(Checks.Bench bench) throws Exception {
        copied(bench, DeliveryGuarantee.AT_LEAST_ONCE, TransactionNamingStrategy.INCREMENTING);
    }

    static void exactlyOnce(Checks.Bench bench) throws Exception {
        copied(bench, DeliveryGuarantee.EXACTLY_ONCE, TransactionNamingStrategy.INCREMENTING);
    }

    /** Transactional ids are used again; which transactions are open is asked of the brokers. */
    static void exactlyOncePooled(Checks.Bench bench) throws Exception {
        copied(bench, DeliveryGuarantee.EXACTLY_ONCE, TransactionNamingStrategy.POOLING);
    }

    /** A job copies a topic; its function fails twice on the way. */
    private static void copied(
            Checks.Bench bench, DeliveryGuarantee guarantee, TransactionNamingStrategy naming)
            throws Exception {
        String topic = bench.create("in", PARTITIONS);
        String copy = bench.create("out", PARTITIONS);
        JobClient client = start(bench, topic, copy, guarantee, naming, null);
        try {
            for (int from = 0; from < COUNT; from += PART) {
                write(bench, topic, from, from + PART);
                int written = from + PART;
                Checks.until("they are copied", () -> committed(bench, copy).containsAll(values(written)));
            }
        } finally {
            client.cancel().get();
        }
        List<String> found = committed(bench, copy);
        if (guarantee == DeliveryGuarantee.EXACTLY_ONCE) {
            Checks.expect(found, values(COUNT));
        }
        Checks.expect(FAILED.contains(bench.prefix() + "value-100"), true);
        Checks.expect(FAILED.contains(bench.prefix() + "value-250"), true);
    }

    /** Another job goes on from a savepoint, whose transactions it commits. */
    static void savepoint(Checks.Bench bench) throws Exception {
        String topic = bench.create("in", PARTITIONS);
        String copy = bench.create("out", PARTITIONS);
        DeliveryGuarantee guarantee = DeliveryGuarantee.EXACTLY_ONCE;
        TransactionNamingStrategy naming = TransactionNamingStrategy.INCREMENTING;
        write(bench, topic, 0, COUNT / 2);
        JobClient client = start(bench, topic, copy, guarantee, naming, null);
        Checks.until("it copies", () -> committed(bench, copy).size() >= COUNT / 2);
        write(bench, topic, COUNT / 2, COUNT / 2 + PART);
        String path = client.stopWithSavepoint(
            false, bench.folder().resolve("savepoints").toUri().toString(), SavepointFormatType.CANONICAL)
            .get();
        write(bench, topic, COUNT / 2 + PART, COUNT);
        JobClient other = start(bench, topic, copy, guarantee, naming, path);
        try {
            Checks.until("all is copied", () -> committed(bench, copy).size() >= COUNT);
        } finally {
            other.cancel().get();
        }
        Checks.expect(committed(bench, copy), values(COUNT));
    }

    /** Partitions that come later are found. */
    static void morePartitions(Checks.Bench bench) throws Exception {
        String topic = bench.create("in", 1);
        String copy = bench.create("out", PARTITIONS);
        JobClient client = start(bench, topic, copy, DeliveryGuarantee.EXACTLY_ONCE,
            TransactionNamingStrategy.INCREMENTING, null);
        try {
            write(bench, topic, 0, PART);
            Checks.until("it copies", () -> committed(bench, copy).size() >= PART);
            try (Admin admin = bench.admin()) {
                admin.createPartitions(java.util.Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            }
            write(bench, topic, PART, COUNT);
            Checks.until("all is copied", () -> committed(bench, copy).size() >= COUNT);
        } finally {
            client.cancel().get();
        }
        Checks.expect(committed(bench, copy), values(COUNT));
    }

    private static final java.util.Set<String> FAILED = ConcurrentHashMap.newKeySet();

    /** Fails once at some values. */
    private static final class Failing implements MapFunction<String, String> {
        private static final long serialVersionUID = 1;
        private final String prefix;

        Failing(String prefix) {
            this.prefix = prefix;
        }

        @Override
        public String map(String value) {
            boolean fails = value.equals("value-100") || value.equals("value-250");
            if (fails && FAILED.add(prefix + value)) {
                throw new IllegalStateException("this fails once");
            }
            return value;
        }
    }

    private static JobClient start(
            Checks.Bench bench, String topic, String copy, DeliveryGuarantee guarantee,
            TransactionNamingStrategy naming, String savepoint) throws Exception {
        StreamExecutionEnvironment job = job(bench, savepoint);
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(bench.bootstrap())
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic(copy).setValueSerializationSchema(new SimpleStringSchema()).build())
            .setDeliveryGuarantee(guarantee)
            .setTransactionalIdPrefix(bench.prefix())
            .setTransactionNamingStrategy(naming)
            .setProperty("transaction.timeout.ms", "60000")
            .build();
        job.fromSource(source(bench, topic).build(), WatermarkStrategy.noWatermarks(), "in").uid("in")
            .map(new Failing(bench.prefix())).uid("failing")
            .sinkTo(sink).uid("out");
        return job.executeAsync(bench.prefix());
    }

    private static StreamExecutionEnvironment job(Checks.Bench bench, String savepoint) {
        Configuration configuration = new Configuration();
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 10);
        configuration.set(
            RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, java.time.Duration.ofMillis(100));
        Path checkpoints = bench.folder().resolve("checkpoints");
        configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
        if (savepoint != null) {
            configuration.set(StateRecoveryOptions.SAVEPOINT_PATH, savepoint);
        }
        StreamExecutionEnvironment job =
            StreamExecutionEnvironment.createLocalEnvironment(PARTITIONS, configuration);
        job.enableCheckpointing(300, CheckpointingMode.EXACTLY_ONCE);
        return job;
    }

    private static KafkaSourceBuilder<String> source(Checks.Bench bench, String topic) {
        return KafkaSource.<String>builder()
            .setBootstrapServers(bench.bootstrap())
            .setTopics(topic)
            .setGroupId(bench.name("group"))
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperty("partition.discovery.interval.ms", "500")
            .setProperty("isolation.level", "read_committed")
            .setValueOnlyDeserializer(new SimpleStringSchema());
    }

    private static void write(Checks.Bench bench, String topic, int from, int to) {
        bench.write(topic, IntStream.range(from, to)
            .mapToObj(number -> new String[] {Integer.toString(number), "value-" + number}).toList());
    }

    private static List<String> values(int count) {
        return sorted(IntStream.range(0, count).mapToObj(number -> "value-" + number).toList());
    }

    private static List<String> committed(Checks.Bench bench, String topic) {
        return sorted(bench.committed(topic).stream().map(ConsumerRecord::value).toList());
    }

    private static List<String> sorted(List<String> values) {
        return values.stream().sorted().toList();
    }
}
