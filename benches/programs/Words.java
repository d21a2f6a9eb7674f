import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Counts made-up words on a pool of threads: {@code java Words THREADS TEXTS}. */
public final class Words {
    private static final int WORDS_PER_TEXT = 40_000;

    /** The words of a text; the same for the same number. */
    private static String[] text(long number) {
        long state = number * 0x9e3779b97f4a7c15L + 1;
        String[] words = new String[WORDS_PER_TEXT];
        for (int i = 0; i < words.length; i++) {
            state ^= state << 13;
            state ^= state >>> 7;
            state ^= state << 17;
            long range = 1 + (state >>> 32) % 20_000;
            words[i] = "w" + Long.toString((state >>> 1) % range, 36);
        }
        return words;
    }

    public static void main(String[] arguments) throws Exception {
        int threads = Integer.parseInt(arguments[0]);
        int texts = Integer.parseInt(arguments[1]);
        ConcurrentHashMap<String, Integer> all = new ConcurrentHashMap<>();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<?>> parts = new ArrayList<>();
        for (int number = 0; number < texts; number++) {
            long of = number;
            parts.add(pool.submit(() -> {
                Map<String, Integer> local = new HashMap<>();
                for (String word : text(of)) {
                    local.merge(word, 1, Integer::sum);
                }
                local.forEach((word, count) -> all.merge(word, count, Integer::sum));
            }));
        }
        for (Future<?> part : parts) {
            part.get();
        }
        pool.shutdown();
        String[] words = all.keySet().toArray(new String[0]);
        Arrays.parallelSort(words);
        System.out.println(words.length + " " + words[0]);
    }
}
