/* Which functions get a second body for newer x86-64 processors, chosen at run time by __builtin_cpu_supports.
 * The package is built for the plain architecture, so a wheel runs everywhere. */
#ifndef SHUFLR_TARGET_H
#define SHUFLR_TARGET_H

#if defined(__x86_64__) && defined(__GNUC__)
#define SHUFLR_HAS_AVX2 1
#define SHUFLR_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))
#endif

#endif
