import java.lang.reflect.InvocationTargetException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs checks of a library, one after another, and tells what became of each in a line of JSON. The
 * program is called with its class, the brokers, the replication of topics, the file for the lines,
 * and the names of checks: static methods of its class.
 */
final class Checks {
    static final Duration WAIT = Duration.ofSeconds(60);
    private static final AtomicInteger NUMBERS = new AtomicInteger();

    private Checks() {}

    public static void main(String[] args) throws Exception {
        Class<?> checks = Class.forName(args[0]);
        Path lines = Path.of(args[3]);
        for (String test : List.of(args).subList(4, args.length)) {
            Path folder = Files.createDirectories(lines.resolveSibling(test));
            String prefix = "suite-" + ProcessHandle.current().pid() + "-" + NUMBERS.incrementAndGet();
            Bench bench = new Bench(args[1], Short.parseShort(args[2]), folder, prefix);
            long begun = System.nanoTime();
            String outcome = "passed";
            String said = "";
            try {
                checks.getDeclaredMethod(test, Bench.class).invoke(null, bench);
            } catch (InvocationTargetException failure) {
                failure.getCause().printStackTrace();
                outcome = "failed";
                said = failure.getCause().toString();
            }
            String line = String.format(
                "{\"test\": %s, \"outcome\": %s, \"seconds\": %.3f, \"said\": %s}%n",
                quoted(test), quoted(outcome), (System.nanoTime() - begun) / 1e9, quoted(said));
            Files.writeString(lines, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }
        System.exit(0);  // Whatever threads a failed check has left.
    }

    private static String quoted(String text) {
        String plain = text.replaceAll("\\p{Cntrl}", " ");
        return '"' + plain.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    static void expect(Object found, Object expected) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError(found + ", and not " + expected);
        }
    }

    static void until(String what, Callable<Boolean> holds) throws Exception {
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (!holds.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("not in time: " + what);
            }
            Thread.sleep(50);
        }
    }

    /** What a check has: brokers, a folder for its files, and a prefix of names that no other has. */
    record Bench(String bootstrap, short replication, Path folder, String prefix) {
        String name(String of) {
            return prefix + "-" + of;
        }

        Admin admin() {
            return Admin.create(Map.of("bootstrap.servers", bootstrap));
        }

        String create(String of, int partitions) throws ExecutionException, InterruptedException {
            return create(of, partitions, Map.of());
        }

        String create(String of, int partitions, Map<String, String> configs)
                throws ExecutionException, InterruptedException {
            try (Admin admin = admin()) {
                NewTopic topic = new NewTopic(name(of), partitions, replication).configs(configs);
                admin.createTopics(List.of(topic)).all().get();
            }
            return name(of);
        }

        Collection<String> topics() throws ExecutionException, InterruptedException {
            try (Admin admin = admin()) {
                return admin.listTopics().names().get();
            }
        }

        String config(String topic, String setting) throws ExecutionException, InterruptedException {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            try (Admin admin = admin()) {
                return admin.describeConfigs(List.of(resource)).all().get()
                    .get(resource).get(setting).value();
            }
        }

        KafkaProducer<String, String> producer() {
            Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
            return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        }

        /** Write records, which have a key and a value each. */
        void write(String topic, List<String[]> pairs) {
            try (KafkaProducer<String, String> producer = producer()) {
                for (String[] pair : pairs) {
                    producer.send(new ProducerRecord<>(topic, pair[0], pair[1]));
                }
            }
        }

        /** Read the committed records of a topic, until so many are there. */
        List<ConsumerRecord<String, String>> read(String topic, int count) throws Exception {
            List<ConsumerRecord<String, String>> found = new ArrayList<>();
            until(count + " records", () -> {
                found.clear();
                found.addAll(committed(topic));
                return found.size() >= count;
            });
            return found;
        }

        /** Read all records of a topic that are committed now. */
        List<ConsumerRecord<String, String>> committed(String topic) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("isolation.level", "read_committed");
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            List<ConsumerRecord<String, String>> found = new ArrayList<>();
            try (KafkaConsumer<String, String> consumer =
                    new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
                List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(of -> new TopicPartition(of.topic(), of.partition())).toList();
                consumer.assign(partitions);
                Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
                while (partitions.stream().anyMatch(at -> consumer.position(at) < ends.get(at))) {
                    consumer.poll(Duration.ofMillis(200)).forEach(found::add);
                }
            }
            return found;
        }

        /** Wait until the last value of each key is what is expected. */
        void latest(String topic, Map<String, String> expected) throws Exception {
            until("the last value of each key", () -> {
                Map<String, String> found = new HashMap<>();
                committed(topic).forEach(record -> found.put(record.key(), record.value()));
                return found.equals(expected);
            });
        }
    }
}
