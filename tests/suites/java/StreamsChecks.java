import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/** What Kafka Streams' documentation shows: counting words, joins, windows, exactly once. */
final class StreamsChecks {
    private static final int PARTITIONS = 3;
    private static final List<String> WORDS = List.of("all", "streams", "lead", "to", "kafka");
    private static final int LINES = 600;

    private StreamsChecks() {}

    static void wordCount(Checks.Bench bench) throws Exception {
        counted(bench, StreamsConfig.AT_LEAST_ONCE);
    }

    static void wordCountExactlyOnce(Checks.Bench bench) throws Exception {
        counted(bench, StreamsConfig.EXACTLY_ONCE_V2);
    }

    private static void counted(Checks.Bench bench, String guarantee) throws Exception {
        String lines = bench.create("lines", PARTITIONS);
        String counts = bench.create("counts", PARTITIONS);
        write(bench, lines, 0, LINES);
        try (Running streams = start(bench, settings(bench, "a", guarantee), counting(lines, counts))) {
            bench.latest(counts, expected(LINES));
            String changelog = bench.name("app-counts-changelog");
            String repartition = bench.name("app-words-repartition");
            Checks.expect(bench.topics().containsAll(List.of(changelog, repartition)), true);
            Checks.expect(bench.config(changelog, "cleanup.policy"), "compact");
            Checks.expect(bench.config(repartition, "cleanup.policy"), "delete");
            Checks.expect(bench.config(repartition, "retention.ms"), "-1");
            // What has been read of the topic in between is deleted.
            Checks.until("the records of the repartition topic go",
                () -> offsets(bench, repartition, OffsetSpec.earliest()) > LINES);
        }
    }

    /** Two instances; one of them leaves, another one comes and takes its state from the changelog. */
    static void instances(Checks.Bench bench) throws Exception {
        String lines = bench.create("lines", PARTITIONS);
        String counts = bench.create("counts", PARTITIONS);
        Consumer<StreamsBuilder> topology = counting(lines, counts);
        String guarantee = StreamsConfig.EXACTLY_ONCE_V2;
        try (Running first = start(bench, settings(bench, "a", guarantee), topology)) {
            write(bench, lines, 0, LINES / 3);
            try (Running second = start(bench, settings(bench, "b", guarantee), topology)) {
                Checks.until("both have tasks", () -> first.tasks() > 0 && second.tasks() > 0
                    && first.tasks() + second.tasks() == 2 * PARTITIONS);
                write(bench, lines, LINES / 3, 2 * LINES / 3);
                bench.latest(counts, expected(2 * LINES / 3));
            }
            try (Running third = start(bench, settings(bench, "c", guarantee), topology)) {
                Checks.until("the third has tasks", () -> third.tasks() > 0);
                write(bench, lines, 2 * LINES / 3, LINES);
                bench.latest(counts, expected(LINES));
            }
        }
        onceEach(bench, counts);
    }

    /** Local state is deleted, so all of it comes from the changelog. */
    static void restored(Checks.Bench bench) throws Exception {
        String lines = bench.create("lines", PARTITIONS);
        String counts = bench.create("counts", PARTITIONS);
        Consumer<StreamsBuilder> topology = counting(lines, counts);
        Properties settings = settings(bench, "a", StreamsConfig.EXACTLY_ONCE_V2);
        write(bench, lines, 0, LINES / 2);
        try (Running streams = start(bench, settings, topology)) {
            bench.latest(counts, expected(LINES / 2));
            streams.streams.close();
            streams.streams.cleanUp();
        }
        write(bench, lines, LINES / 2, LINES);
        try (Running streams = start(bench, settings, topology)) {
            bench.latest(counts, expected(LINES));
        }
        onceEach(bench, counts);
    }

    /** A process is killed in the middle of its transactions, again and again. */
    static void killed(Checks.Bench bench) throws Exception {
        String lines = bench.create("lines", PARTITIONS);
        String counts = bench.create("counts", PARTITIONS);
        for (int round = 0; round < 3; round++) {
            Process process = new ProcessBuilder(
                ProcessHandle.current().info().command().orElseThrow(), "-Xmx256m",
                "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
                System.getProperty("java.class.path"), "StreamsChecks",
                bench.bootstrap(), Short.toString(bench.replication()),
                bench.folder().toString(), bench.prefix(), lines, counts)
                .redirectErrorStream(true)
                .redirectOutput(bench.folder().resolve("killed-" + round + ".log").toFile())
                .start();
            try {
                long before = offsets(bench, counts, OffsetSpec.latest());
                for (int part = 0; part < 10; part++) {
                    int from = (round * 10 + part) * LINES / 30;
                    write(bench, lines, from, from + LINES / 30);
                }
                Checks.until("it writes", () -> offsets(bench, counts, OffsetSpec.latest()) > before);
            } finally {
                process.destroyForcibly().waitFor();
            }
        }
        try (Running streams = start(bench, settings(bench, "last", StreamsConfig.EXACTLY_ONCE_V2),
                counting(lines, counts))) {
            bench.latest(counts, expected(LINES));
        }
        onceEach(bench, counts);
    }

    /** Counts words until it is killed. */
    public static void main(String[] args) throws Exception {
        Checks.Bench bench =
            new Checks.Bench(args[0], Short.parseShort(args[1]), Path.of(args[2]), args[3]);
        start(bench, settings(bench, "killed", StreamsConfig.EXACTLY_ONCE_V2), counting(args[4], args[5]));
        Thread.currentThread().join();
    }

    static void standbys(Checks.Bench bench) throws Exception {
        String lines = bench.create("lines", PARTITIONS);
        String counts = bench.create("counts", PARTITIONS);
        Consumer<StreamsBuilder> topology = counting(lines, counts);
        Properties one = settings(bench, "a", StreamsConfig.AT_LEAST_ONCE);
        Properties other = settings(bench, "b", StreamsConfig.AT_LEAST_ONCE);
        for (Properties settings : List.of(one, other)) {
            settings.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, 1);
        }
        one.put(StreamsConfig.APPLICATION_SERVER_CONFIG, "one:1");
        other.put(StreamsConfig.APPLICATION_SERVER_CONFIG, "other:1");
        write(bench, lines, 0, LINES);
        try (Running first = start(bench, one, topology); Running second = start(bench, other, topology)) {
            bench.latest(counts, expected(LINES));
            Checks.until("each has standbys", () -> first.standbys() > 0 && second.standbys() > 0
                && first.standbys() + second.standbys() == PARTITIONS);
            Checks.expect(first.streams.metadataForAllStreamsClients().size(), 2);
            Checks.until("a standby has all", () -> {
                ReadOnlyKeyValueStore<String, Long> store = first.streams.store(
                    StoreQueryParameters.fromNameAndType(
                        "counts", QueryableStoreTypes.<String, Long>keyValueStore()).enableStaleStores());
                return WORDS.stream().allMatch(word -> store.get(word) != null);
            });
        }
    }

    static void joins(Checks.Bench bench) throws Exception {
        String orders = bench.create("orders", PARTITIONS);
        String customers = bench.create("customers", PARTITIONS, Map.of("cleanup.policy", "compact"));
        String countries = bench.create("countries", 1, Map.of("cleanup.policy", "compact"));
        String joined = bench.create("joined", PARTITIONS);
        bench.write(countries, List.of(pair("fr", "France"), pair("no", "Norway")));
        bench.write(customers, List.of(pair("ann", "fr"), pair("bob", "no"), pair("eve", "fr")));
        try (Running streams = start(bench, settings(bench, "a", StreamsConfig.EXACTLY_ONCE_V2), builder -> {
            GlobalKTable<String, String> names = builder.globalTable(countries);
            KTable<String, String> of = builder.table(customers, Materialized.as("customers"));
            builder.<String, String>stream(orders)
                .join(of, (order, country) -> order + " to " + country)
                .join(names, (key, text) -> text.substring(text.length() - 2),
                    (text, country) -> text + " (" + country + ")")
                .to(joined);
        })) {
            bench.write(orders, List.of(pair("ann", "wine"), pair("bob", "fish"), pair("nobody", "-")));
            bench.latest(joined, Map.of("ann", "wine to fr (France)", "bob", "fish to no (Norway)"));
        }
    }

    /** Two internal topics carry subscriptions and their answers. */
    static void foreignKeyJoin(Checks.Bench bench) throws Exception {
        String customers = bench.create("customers", PARTITIONS);
        String countries = bench.create("countries", PARTITIONS);
        String joined = bench.create("joined", PARTITIONS);
        try (Running streams = start(bench, settings(bench, "a", StreamsConfig.EXACTLY_ONCE_V2), builder -> {
            KTable<String, String> of = builder.table(customers);
            KTable<String, String> names = builder.table(countries);
            of.join(names, country -> country, (country, name) -> name).toStream().to(joined);
        })) {
            bench.write(customers, List.of(pair("ann", "fr"), pair("bob", "no"), pair("eve", "fr")));
            bench.write(countries, List.of(pair("fr", "France"), pair("no", "Norway")));
            bench.latest(joined, Map.of("ann", "France", "bob", "Norway", "eve", "France"));
            bench.write(countries, List.<String[]>of(pair("fr", "Republic")));
            bench.latest(joined, Map.of("ann", "Republic", "bob", "Norway", "eve", "Republic"));
        }
    }

    static void streamJoin(Checks.Bench bench) throws Exception {
        String left = bench.create("left", PARTITIONS);
        String right = bench.create("right", PARTITIONS);
        String joined = bench.create("joined", PARTITIONS);
        try (Running streams = start(bench, settings(bench, "a", StreamsConfig.EXACTLY_ONCE_V2), builder -> {
            KStream<String, String> other = builder.stream(right);
            builder.<String, String>stream(left)
                .join(other, (one, two) -> one + two,
                    JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(5)))
                .to(joined);
        })) {
            bench.write(left, List.of(pair("a", "1"), pair("b", "2"), pair("c", "3")));
            bench.write(right, List.of(pair("a", "x"), pair("b", "y")));
            bench.latest(joined, Map.of("a", "1x", "b", "2y"));
        }
    }

    /** Windows whose result is held back until they have ended; their changelog is compacted and ages. */
    static void windows(Checks.Bench bench) throws Exception {
        String clicks = bench.create("clicks", 1);
        String totals = bench.create("totals", 1);
        long begin = Instant.now().toEpochMilli() / 60_000 * 60_000 - 600_000;
        try (Running streams = start(bench, settings(bench, "a", StreamsConfig.EXACTLY_ONCE_V2), builder ->
            builder.<String, String>stream(clicks)
                .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMinutes(1)))
                .count(Materialized.as("clicks"))
                .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
                .toStream()
                .map((window, count) -> KeyValue.pair(
                    window.key() + "@" + (window.window().start() - begin) / 60_000, count.toString()))
                .to(totals, Produced.with(Serdes.String(), Serdes.String())))) {
            try (var producer = bench.producer()) {
                for (int second = 0; second < 300; second += 10) {
                    producer.send(new org.apache.kafka.clients.producer.ProducerRecord<>(
                        clicks, null, begin + second * 1000L, "page", "click"));
                }
            }
            bench.latest(totals, IntStream.range(0, 4).boxed()
                .collect(Collectors.toMap(minute -> "page@" + minute, minute -> "6")));
            String changelog = bench.name("app-clicks-changelog");
            Checks.expect(new TreeSet<>(List.of(bench.config(changelog, "cleanup.policy").split(","))),
                new TreeSet<>(List.of("compact", "delete")));
        }
    }

    private static final class Running implements AutoCloseable {
        final KafkaStreams streams;

        Running(KafkaStreams streams) {
            this.streams = streams;
        }

        int tasks() {
            return streams.metadataForLocalThreads().stream().mapToInt(of -> of.activeTasks().size()).sum();
        }

        int standbys() {
            return streams.metadataForLocalThreads().stream().mapToInt(of -> of.standbyTasks().size()).sum();
        }

        @Override
        public void close() {
            if (!streams.close(Duration.ofSeconds(30))) {
                throw new AssertionError("it does not end");
            }
        }
    }

    private static Properties settings(Checks.Bench bench, String instance, String guarantee)
            throws IOException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, bench.name("app"));
        settings.put(StreamsConfig.CLIENT_ID_CONFIG, instance);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bench.bootstrap());
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, (int) bench.replication());
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 500);
        settings.put(StreamsConfig.STATE_DIR_CONFIG,
            Files.createDirectories(bench.folder().resolve("state-" + instance)).toString());
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 5000);
        return settings;
    }

    private static Running start(Checks.Bench bench, Properties settings, Consumer<StreamsBuilder> topology) {
        StreamsBuilder builder = new StreamsBuilder();
        topology.accept(builder);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        return new Running(streams);
    }

    private static Consumer<StreamsBuilder> counting(String lines, String counts) {
        return builder -> builder.<String, String>stream(lines)
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.as("words"))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .mapValues(String::valueOf)
            .to(counts, Produced.with(Serdes.String(), Serdes.String()));
    }

    /** Write lines of two words each. */
    private static void write(Checks.Bench bench, String topic, int from, int to) {
        List<String[]> pairs = new ArrayList<>();
        for (int number = from; number < to; number++) {
            pairs.add(pair(Integer.toString(number), word(number) + " " + word(number + 1)));
        }
        bench.write(topic, pairs);
    }

    private static String word(int number) {
        return WORDS.get(number % WORDS.size());
    }

    private static Map<String, String> expected(int lines) {
        Map<String, Integer> counts = new HashMap<>();
        for (int number = 0; number < lines; number++) {
            counts.merge(word(number), 1, Integer::sum);
            counts.merge(word(number + 1), 1, Integer::sum);
        }
        return counts.entrySet().stream()
            .collect(Collectors.toMap(Map.Entry::getKey, entry -> entry.getValue().toString()));
    }

    /** Each count of each word is there once, in order: nothing was counted, or written, twice. */
    private static void onceEach(Checks.Bench bench, String counts) throws Exception {
        Map<String, List<Integer>> found = new TreeMap<>();
        for (ConsumerRecord<String, String> record : bench.read(counts, 2 * LINES)) {
            found.computeIfAbsent(record.key(), word -> new ArrayList<>())
                .add(Integer.valueOf(record.value()));
        }
        found.forEach((word, numbers) ->
            Checks.expect(numbers, IntStream.rangeClosed(1, numbers.size()).boxed().toList()));
        Checks.expect(found.values().stream().mapToInt(List::size).sum(), 2 * LINES);
    }

    private static long offsets(Checks.Bench bench, String topic, OffsetSpec of) throws Exception {
        try (Admin admin = bench.admin()) {
            Map<TopicPartition, OffsetSpec> asked = IntStream.range(0, PARTITIONS).boxed()
                .collect(Collectors.toMap(number -> new TopicPartition(topic, number), number -> of));
            return admin.listOffsets(asked).all().get().values().stream()
                .mapToLong(found -> found.offset()).sum();
        }
    }

    private static String[] pair(String key, String value) {
        return new String[] {key, value};
    }
}
