/** One thread prepares, the others spin on a volatile field until it has: generated code. */
final class Bell {
    private static final int ROUNDS = 1500;

    private static volatile int rung;

    static long listenForTheBell(int round) {
        long since = System.nanoTime();
        while (rung < round) {
            Thread.onSpinWait();
        }
        return System.nanoTime() - since;
    }

    static void prepareTheMeal() {
        Planted.burn(600);
    }

    static void eatTheMeal() {
        Planted.burn(200);
    }

    static long cook(int n) {
        for (int round = 1; round <= ROUNDS; round++) {
            prepareTheMeal();
            rung = round;
            if (n == 1) {
                eatTheMeal();
            }
        }
        return 0;
    }

    static long guest() {
        long waited = 0;
        for (int round = 1; round <= ROUNDS; round++) {
            waited += listenForTheBell(round);
            eatTheMeal();
        }
        return waited;
    }

    public static void main(String[] args) throws Exception {
        int n = Planted.begin(args);
        Thread cook = new Thread(() -> cook(n));
        cook.start();
        long waited = n > 1 ? Planted.runCrew(n - 1, Bell::guest) : 0;
        cook.join();
        Planted.tell("user-spin", waited);
    }
}
