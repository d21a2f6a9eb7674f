import java.util.concurrent.atomic.AtomicInteger;

/** A synchronized block, L : U = 3 : 1. */
final class Monitor {
    private static final Object CACHE = new Object();
    private static final AtomicInteger TAKEN = new AtomicInteger();

    static long lockTheCache() {
        long since = System.nanoTime();
        synchronized (CACHE) {
            long waited = System.nanoTime() - since;
            Planted.burn(600);
            return waited;
        }
    }

    static void outsideTheCache() {
        Planted.burn(200);
    }

    public static void main(String[] args) throws Exception {
        int n = Planted.begin(args);
        Planted.tell("lock-wait", Planted.runCrew(n, () -> {
            long waited = 0;
            while (Planted.another(TAKEN, 1500)) {
                waited += lockTheCache();
                outsideTheCache();
            }
            return waited;
        }));
    }
}
